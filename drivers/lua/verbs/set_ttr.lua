-- Let a held task with a ttr run for so long from now on; later takes have its own ttr.
-- ARGV  6, 7, 8 as for ack, 9 microseconds ('': its own ttr), 10 '1': one without a ttr gets this one
-- answers  as for ack
--#include begin
--#include held_task
local due
task.due = due_of(task.id)
call('HDEL', M, '')
if ARGV[10] and not task.ttr then
  task.ttr = tonumber(ARGV[9])
  write(task)
end
if task.ttr then
  due = now + (tonumber(ARGV[9]) or task.ttr)
--#move touch t
end
--#include reply
