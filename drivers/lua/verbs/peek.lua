-- Look at a task.
-- ARGV  6, 7, 8 as in find_any.lua and return_task.lua
-- reply  as for ack
--#include begin
--#include flush
--#if KEEPS
local kept = encode_done(ARGV[6], ARGV[7] or '')
if kept then return kept end
--#end
--#include find_any
return encode_task(task, ARGV[8] ~= '')
