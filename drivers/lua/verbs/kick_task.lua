-- Make one buried or delayed task ready; a task in another state is not changed.
-- ARGV  6, 7, 8 as in any_task.lua and reply.lua, 9, 10 its new attempts and time to live, as `respawn` takes them
-- reply  as for ack
--#include begin
--#include any_task
local due
call('HDEL', M, '')
if task.state == '!' or task.state == '~' then
  respawn(task, ARGV[9], ARGV[10])
--#move kick
end
--#include outlived
--#include reply
