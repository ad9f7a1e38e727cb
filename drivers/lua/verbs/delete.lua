-- Remove a task, in whatever state.
-- ARGV  6, 7, 8 as any_task.lua and reply.lua say
-- answers  as for ack
--#include begin
--#include any_task
call('HDEL', M, '')
--#move delete
--#include reply
