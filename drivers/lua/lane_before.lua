-- The lane of the local `task`, before it moves: functions would be defined at every call.
--#if LANE
lane = task.lane or 'nil'
lane_record = call('HGET', M .. ':lanes', lane)
lane_key = lane_record and sub(lane_record, 1, 5)
lane_taken = lane_record and #lane_record == 5
lane_head = lane_record and not lane_taken and sub(lane_record, 6)
--#end
