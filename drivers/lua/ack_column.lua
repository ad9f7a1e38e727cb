-- One of the tasks that are acked together: its lane, and whether it may be due.
--#flat
task.value = values[n]
--#include read_task
lanes[n] = task.lane or 'nil'
--#if TIMED
if task.ttl or task.ttr then undue[#undue + 1] = pack('>I6', ids[n]) end
--#end
if task.key then keyed[#keyed + 1] = { task.key, ids[n], task.key_ttl } end
