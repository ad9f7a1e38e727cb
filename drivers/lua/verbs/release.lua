-- Give a held task back.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready ('': at once)
-- answers  as for ack
--#include begin
if replayed then return replayed end
local task = held()
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
local due
--#if TIMED
if ARGV[9] ~= '' then
  if task.ttl then task.ttl = task.ttl + ARGV[9] end
  due = now + ARGV[9]
--#move release_delayed t
else
--#move release t
end
--#else
--#move release t
--#end
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
