-- Count the tasks of a tube, its calls, and who waits.
-- answers  {tasks, taken, buried, and by name what the meta hash counts: field, value, …}, then who waits (see waiting.lua),
--          then the end of a pause
--#include begin
--#include flush
local counted = { call('HLEN', M .. ':tasks'), call('ZCARD', M .. ':taken'), call('ZCARD', M .. ':buried') }
counted[4] = call('HMGET', M, 'next', 'takes', 'acks', 'delayed', 'calls:release', 'calls:touch', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put')
local most = 1000
--#include waiting
counted[5] = processes
counted[6] = call('HGET', M, 'paused')
--#if KEEPS
counted[7] = call('ZCOUNT', M .. ':ended', string.format('(%.0f', now), '+inf')
--#end
return counted
