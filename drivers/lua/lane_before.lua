-- Read the lane of the local `task`, before it moves. This is no function: that would be defined at every call.
--#if LANE
lane = task.lane or 'nil'
--#if PACED
--#if WAS_TAKEN
enter_pace(-1)
if task.undone then undo_start(task.id, task.attempts) end
--#else
enter_pace(0)
--#end
--#if TO_READY
if pace.place == 0 then place_in_round() end
--#end
--#else
lane_record = call('HGET', M .. ':lanes', lane)
lane_key = lane_record and sub(lane_record, 1, 5)
lane_taken = lane_record and #lane_record == 5
lane_head = lane_record and not lane_taken and sub(lane_record, 6)
--#end
--#end
