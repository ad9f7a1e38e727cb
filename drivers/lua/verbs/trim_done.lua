-- Remove the oldest done tasks in excess of the limit of the tube.
-- ARGV  6 the maximum per call, bounded
-- reply  the number of done tasks that are left to remove
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
