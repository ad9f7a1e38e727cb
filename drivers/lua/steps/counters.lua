-- Count tasks, calls and waiters of a tube: the first five figures of statistics.lua. `most`: as for list_waiting.lua.
-- in: most
-- out: counted
local counted = { call('HLEN', M .. ':tasks'), call('ZCARD', M .. ':taken'), call('ZCARD', M .. ':buried') }
counted[4] = call('HMGET', M, 'next', 'takes', 'acks', 'delayed', 'calls:release', 'calls:touch', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put')
--#include list_waiting
counted[5] = processes
