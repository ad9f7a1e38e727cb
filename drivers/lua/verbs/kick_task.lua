-- Make one buried or delayed task ready; another one stays as it is.
-- ARGV  6, 7, 8 as any_task.lua and reply.lua say, 9, 10 what it gets, as `respawn` says
-- answers  as for ack
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
