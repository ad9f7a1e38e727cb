-- Take the task of `id`, which stands nowhere: leaves `answer`, its facts, and `stored`, what is stored of it.
--#flat
-- HMGET since that is allowed: the head has run it.
task.id, task.value, task.attempts, task.owner = id, call('HMGET', M .. ':tasks', id)[1], 0, ARGV[1]
--#include read_task
--#if TIMED
local due = task.ttr and now + task.ttr
if task.ttl then task.created = unpack_struct('>I7', task.value, 2) end
--#end
--#move take r
--#include facts
local stored = task.value
