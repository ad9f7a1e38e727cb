-- Count the tasks of a tube, its calls, and its waiters.
-- reply  {tasks, taken tasks, buried tasks, a list of counters of the meta hash, the waiters (see list_waiting.lua),
--        the end of a pause, the number of kept done tasks, if the tube keeps them}
--#include begin
--#include flush
local most = 1000
--#include counters
counted[6] = call('HGET', M, 'paused')
counted[7] = call('ZCOUNT', M .. ':ended', string.format('(%.0f', now), '+inf')  --#if KEEPS
return counted
