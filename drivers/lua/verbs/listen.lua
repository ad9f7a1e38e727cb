-- Have every change of a task published from now on.
-- ARGV  6 microseconds for which to do so ('': for ever)
-- answers  the next moment at which something is due (0: never)
--#include begin
call('HDEL', M, '')
local ends = ARGV[6] ~= '' and now + ARGV[6] or 1e18
--#include heard
--#include flush
return soonest or 0
