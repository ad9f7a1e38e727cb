-- Restart the ttr of a held task with this span; later takes use its own ttr.
-- ARGV  6, 7, 8 as for ack, 9 microseconds ('': its own ttr)
-- reply  as for ack
--#include begin
--#include find_held
local due
task.due = due_of(task.id)
call('HDEL', M, '')
if task.ttr then
  due = now + (tonumber(ARGV[9]) or task.ttr)
--#move touch t
end
--#include return_task
