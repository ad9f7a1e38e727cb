-- Give a held task more time to run and to live, for good.
-- ARGV  6, 7, 8 as for ack, 9 microseconds
-- answers  as for ack
--#include begin
if replayed then return replayed end
local task = held()
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
local more = tonumber(ARGV[9])
task.due = tonumber(call('ZSCORE', M .. ':due', pack('>I6', task.id)) or nil)
if more > 0 then
  if task.ttl then task.ttl = task.ttl + more end
  if task.ttr then task.ttr = task.ttr + more end
  call('HDEL', M, '')
  write(task)
  local due = task.due and task.due + more
--#move touch t
end
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
