-- Make one buried or delayed task ready; a task in another state is not changed.
-- ARGV  6, 7, 8 as in find_any.lua and return_task.lua, 9, 10 its new attempts and time to live, as for `reset_kicked`
-- reply  as for ack
--#include begin
--#include find_any
local due
call('HDEL', M, '')
if task.state == '!' or task.state == '~' then
  reset_kicked(task, ARGV[9], ARGV[10])
--#move kick
end
--#include expire
--#include return_task
