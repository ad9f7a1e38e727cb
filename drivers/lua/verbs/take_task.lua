-- Take one task, regardless of the order.
-- ARGV  6, 7 as in find_any.lua, 8 '', 9 the ttr of this take in microseconds ('': the ttr of the task)
-- reply  the task as `encode_task` encodes it; '' if it cannot be taken now
--#include begin
if replayed then
--#slow
  local task = #replayed > 0 and find_held(unpack_struct('>I8', replayed), this_take)
  return task and encode_held(task) or ''
--#fast
end
local task = find_expected(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTFOUND there is no such task') end
local free = task.state == 'r' and not (META.paused and META.paused + 0 > now)
free = free and tokens() > 0  --#if RATED
--#if LANE
if free then
--#include lane_before
--#if PACED
  free = not lane_taken
--#else
  -- If the head of the lane is not in ':offers', a task of the lane is taken.
  free = lane_head and call('ZSCORE', M .. ':offers', lane_head)
--#end
end
--#end
if not free then
--#include flush
  return ''
end
call('HDEL', M, '')
--#if LANE
-- Update the lane as if this task were its head in ':offers'.
local at = place(task)
if lane_head then call('ZREM', M .. ':offers', lane_head) end
if lane_head ~= at then
  call('ZREM', M .. ':behind', lane_key .. at)
  if lane_head then call('ZADD', M .. ':behind', 0, lane_key .. lane_head) end
  call('HSET', M .. ':lanes', lane, lane_key .. at)  --#unless PACED
end
--#else
pull(task)
--#end
--#include start
