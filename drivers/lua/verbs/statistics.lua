-- Count the tasks of a tube, its calls, and its waiters.
-- reply  {tasks, taken tasks, buried tasks, a list of counters of the meta hash, the waiters (see waiting.lua), the end
--        of a pause, the number of kept done tasks, if the tube keeps them}
--#include begin
--#include flush
local counted = { call('HLEN', M .. ':tasks'), call('ZCARD', M .. ':taken'), call('ZCARD', M .. ':buried') }
counted[4] = call('HMGET', M, 'next', 'takes', 'acks', 'delayed', 'calls:release', 'calls:touch', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put')
local most = 1000
--#include waiting
counted[5] = processes
counted[6] = call('HGET', M, 'paused')
counted[7] = call('ZCOUNT', M .. ':ended', string.format('(%.0f', now), '+inf')  --#if KEEPS
return counted
