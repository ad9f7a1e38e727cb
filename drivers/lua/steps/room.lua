-- Return false if the tube has no room for `needed` new tasks. `capacity`: the maximum number of tasks (nil: unlimited);
-- `callers`: the number of callers in `process` that wait if there is no room ('': they do not wait).
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
