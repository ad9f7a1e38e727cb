-- A ready `task` stands in its place: its id where order is by id alone, as nothing younger stands there yet; where there are
-- lanes behind `first`, if that comes before it.
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
  call('ZADD', M .. ':offers', pace.place, at)
end
--#elif LANE
-- Behind a head that comes before it, or is taken.
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
