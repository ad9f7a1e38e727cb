-- End a task in any state as cancelled.
-- ARGV  6, 7 as in find_any.lua, 9 the reason ('': none), 10 the minimum microseconds for which a taken task is kept
-- reply  the task as a kept done task; KEEP if a taken task must be kept, and the tube does not keep done tasks yet
--#include begin
--#include find_any
--#unless KEEPS
if task.state == 't' then return redis.error_reply('KEEP the tube does not keep done tasks') end
--#end
call('HDEL', M, '')
task.reason = ARGV[9] ~= '' and ARGV[9]
write(task)
-- The record keeps the task's own keep_done.
if task.state == 't' then task.keep_done = math.max(task.keep_done or 0, ARGV[10] + 0) end  --#if KEEPS
--#move cancel
local record = task.record or pack('>c1I7I7I3I1', 'c', now, now, task.attempts, 0) .. task.value
local reply = pack('>I8c1I4I4i8', task.id, '-', task.attempts, 1, -1) .. record
--#done reply
return reply
