-- Add a task that is acked together with others to the columns: its lane, its due time and its key.
--#flat
task.value = values[n]
--#include read_task
lanes[n] = task.lane or 'nil'
--#if TIMED
if task.ttl or task.ttr then undue[#undue + 1] = pack('>I6', ids[n]) end
--#end
if task.key then keyed[#keyed + 1] = { task.key, ids[n], task.key_ttl } end
