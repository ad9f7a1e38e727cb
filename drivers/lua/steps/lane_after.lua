-- Store the lane of the local `task` after its move.
--#if LANE
--#if PACED
--#if TO_TAKEN
pace.taken = pace.taken + 1
--#if WAS_READY
note_start(task.id, task.attempts)
rest_anew()
--#end
--#end
--#if WAS_TAKEN
--#if TO_TAKEN
--#else
if task.undone then rest_anew() else note_end() end
--#end
--#end
leave_pace()
--#elif TO_TAKEN
--#else
--#if WAS_READY|WAS_TAKEN
-- The lane is free and has no head: offer its next task.
if lane_key and not lane_head then
--#include behind
  if best then
    lane_head = best
    call('ZREM', M .. ':behind', lane_key .. lane_head)
    call('ZADD', M .. ':offers', 0, lane_head)
  end
end
--#end
if lane_head then
  local record = (lane_key or '\254') .. lane_head
  if record ~= lane_record then call('HSET', M .. ':lanes', lane, record) end
--#if WAS_NEW
--#else
elseif lane_record then
  call('HDEL', M .. ':lanes', lane)
--#end
end
--#end
--#end
