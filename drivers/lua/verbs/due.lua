-- Count tasks by when they move by themselves.
-- ARGV  6… microseconds from now on, ascending
-- answers  how many are due before the first, from the first on and before the second, …, from the last on
--#include begin
--#include flush
local counts, from = {}, '-inf'
for n = 6, #ARGV + 1 do
  local to = ARGV[n] and string.format('%.0f', now + ARGV[n])
  counts[#counts + 1] = call('ZCOUNT', M .. ':due', from, to and '(' .. to or '+inf')
  from = to
end
return counts
