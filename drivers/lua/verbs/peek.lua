-- Look at a task.
-- ARGV  6, 7, 8 as in any_task.lua and reply.lua
-- reply  as for ack
--#include begin
--#include flush
--#if KEEPS
local kept = shown_done(ARGV[6], ARGV[7] or '')
if kept then return kept end
--#end
--#include any_task
return shown(task, ARGV[8] ~= '')
