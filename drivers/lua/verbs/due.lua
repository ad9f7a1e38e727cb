-- Count tasks by their due times.
-- ARGV  6… microseconds from now, ascending
-- reply  the number of tasks that are due before the first moment, between each two of them, and from the last on
--#include begin
--#include flush
local counts, from = {}, '-inf'
for n = 6, #ARGV + 1 do
  local to = ARGV[n] and string.format('%.0f', now + ARGV[n])
  counts[#counts + 1] = call('ZCOUNT', M .. ':due', from, to and '(' .. to or '+inf')
  from = to
end
return counts
