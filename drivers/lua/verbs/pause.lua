-- Stop takes for a while; all other calls continue.
-- ARGV  6 microseconds ('': until `resume`)
-- reply  the end of the pause
--#include begin
if replayed then return replayed end
call('HDEL', M, 'paused')
local moment = 1e18
if (ARGV[6] or '') ~= '' then
  moment = now + ARGV[6]
  --#include note_due
end
call('HSET', M, 'paused', moment)
local result = string.format('%.0f', moment)
--#done result
return result
