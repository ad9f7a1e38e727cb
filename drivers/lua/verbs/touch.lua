-- Extend the ttr and the ttl of a held task permanently.
-- ARGV  6, 7, 8 as for ack, 9 microseconds
-- reply  as for ack
--#include begin
--#include find_held
local more = tonumber(ARGV[9])
task.due = due_of(task.id)
if more > 0 then
--#if TIMED
  extend_ttl(task, more)
  if task.ttr then task.ttr = math.min(task.ttr + more, LONGEST) end
--#end
  call('HDEL', M, '')
  write(task)
  local due = task.due and math.min(task.due + more, now + LONGEST)
--#move touch t
end
--#include return_task
