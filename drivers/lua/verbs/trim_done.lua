-- Forget the first of the done tasks, where more are kept than the tube keeps.
-- ARGV  6 how many at most, a bounded number
-- answers  how many are left to forget
--#include begin
local over = 0
--#if KEEPS
--#if KEEPS_SOME
over = call('ZCARD', M .. ':ended') - KEPT_MOST
if over > 0 then forget_done(call('ZRANGE', M .. ':ended', 0, math.min(over, ARGV[6]) - 1)) end
--#end
--#end
--#include flush
return math.max(over - ARGV[6], 0)
