-- Remove all tasks at once. Counters and ids continue.
-- reply  nothing
--#include begin
if replayed then return end
call('UNLINK', M .. ':tasks', M .. ':ready', M .. ':taken', M .. ':due', M .. ':buried', M .. ':back', M .. ':offers', M .. ':behind', M .. ':lanes', M .. ':rests', M .. ':keys', M .. ':known')
--#if LANE_ROOM
call('UNLINK', M .. ':fill')
if call('UNLINK', M .. ':crowded') == 1 then freed = true end
--#end
call('UNLINK', M .. ':done', M .. ':ended')  --#if KEEPS
call('HDEL', M, 'delayed', 'loose')
call('HSET', M, 'oldest', META.next)
if listening then redis.pcall('PUBLISH', M .. ':events', 'gone') end
redis.pcall('PUBLISH', M .. ':lost', '')
--#done ''
return
