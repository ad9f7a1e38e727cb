-- Take the task `id`, which pop.lua has popped. Leaves its facts, and its value as `stored`.
-- in: id
-- out: result, stored
--#flat
task.id, task.value, task.attempts, task.owner = id, call('HGET', M .. ':tasks', id), 0, ARGV[1]
--#include read_task
--#if TIMED
local due = task.ttr and now + task.ttr
if task.ttl then task.created = unpack_struct('>I7', task.value, 2) end
--#end
--#move take r
--#include encode_facts
local stored = task.value
