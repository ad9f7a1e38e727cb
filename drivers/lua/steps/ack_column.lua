-- Add a task that is acked together with others to the columns: its lane, its due time and its key.
-- in: ids, keyed, lanes, n, undue?, values
--#flat
task.value = values[n]
--#include read_task
lanes[n] = task.lane or 'nil'
if task.ttl or task.ttr then undue[#undue + 1] = pack('>I6', ids[n]) end  --#if TIMED
if task.key then keyed[#keyed + 1] = { task.key, ids[n], task.key_ttl } end
