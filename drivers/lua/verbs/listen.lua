-- Publish every change of a task from now on.
-- ARGV  6 microseconds for which to publish ('': without end)
-- reply  the next due time (0: none)
--#include begin
call('HDEL', M, '')
local ends = ARGV[6] ~= '' and now + ARGV[6] or 1e18
--#include set_listening
--#include flush
return soonest or 0
