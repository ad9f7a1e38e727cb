-- Let nothing be taken for a while; all else goes on.
-- ARGV  6 microseconds ('': until `resume`)
-- answers  when the pause ends
--#include begin
if replayed then return replayed end
call('HDEL', M, 'paused')
local ends = 1e18
if (ARGV[6] or '') ~= '' then
  ends = now + ARGV[6]
  if not soonest or ends < soonest then
    soonest = ends
    call('HSET', M, 'soonest', ends)
  end
end
call('HSET', M, 'paused', ends)
local answer = string.format('%.0f', ends)
--#done answer
return answer
