-- Give a held task more time to run and to live, for good.
-- ARGV  6, 7, 8 as for ack, 9 microseconds
-- answers  as for ack
--#include begin
if replayed then return replayed end
local task = held_one(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
local more = tonumber(ARGV[9])
task.due = due_of(task.id)
if more > 0 then
--#if TIMED
  prolong(task, more)
  if task.ttr then task.ttr = math.min(task.ttr + more, LONGEST) end
--#end
  call('HDEL', M, '')
  write(task)
  local due = task.due and math.min(task.due + more, now + LONGEST)
--#move touch t
end
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
