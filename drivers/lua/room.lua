-- Nothing is put unless there is room for so many tasks as are `needed` besides those that are there. `capacity`: how many have
-- room (nil: any number); `callers`: how many in the `process` are going to wait if there is none ('': none).
if capacity and needed > 0 and call('HLEN', M .. ':tasks') + needed > capacity then
  if callers ~= '' then
--#slow
    wait_for_room(needed, callers, process)
--#fast
  end
--#include flush
  return false
end
--#if LANE_ROOM
--#include lane_room
--#end
