-- Add a new ready `task` to the ready tasks. A driver that orders by id appends it to a list, since it is the
-- youngest. With lanes, `first` is the best place of the lane; the task is offered only if its own place comes before
-- that.
-- in: task, first?, at?
--#if LIST
call('RPUSH', M .. ':ready', task.id)
--#else
--#include place_of
--#if PACED
lane_key = lane_key or pack('>I5', call('HINCRBY', M, 'lanes', 1))
if lane_taken or (first and first < at) then
  call('ZADD', M .. ':behind', 0, lane_key .. at)
else
  if lane_head then
    call('ZREM', M .. ':offers', lane_head)
    call('ZADD', M .. ':behind', 0, lane_key .. lane_head)
  end
  lane_head = at
  call('ZADD', M .. ':offers', pace.turn, at)
end
--#elif LANE
-- The lane's head is better, or is taken: queue the task behind it.
if first and (first < at or (lane_head and call('ZREM', M .. ':offers', lane_head) == 0)) then
  lane_key = lane_key or pack('>I5', call('HINCRBY', M, 'lanes', 1))
  call('ZADD', M .. ':behind', 0, lane_key .. at)
else
  if lane_head then
    lane_key = lane_key or pack('>I5', call('HINCRBY', M, 'lanes', 1))
    call('ZADD', M .. ':behind', 0, lane_key .. lane_head)
  end
  lane_head = at
  call('ZADD', M .. ':offers', 0, at)
end
--#else
call('ZADD', M .. ':ready', 0, at)
--#end
--#end
