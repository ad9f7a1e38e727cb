-- Stop takes for a while; all other calls continue.
-- ARGV  6 microseconds ('': until `resume`)
-- reply  the end of the pause
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
