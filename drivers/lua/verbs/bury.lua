-- Put a task aside, in whatever state.
-- ARGV  6, 7, 8 as any_task.lua and reply.lua say, 9 why ('': nobody says)
-- answers  as for ack
--#include begin
--#include any_task
call('HDEL', M, '')
if task.state ~= '!' then
  local due
  task.reason = ARGV[9] ~= '' and ARGV[9]
--#move bury
end
--#include outlived
--#include reply
