-- Read the lane of the local `task` before its move. This is included: a function would be defined again in each
-- call.
-- in: task
--#if LANE
--#if PACED
lane = task.lane or 'nil'
--#if WAS_TAKEN
read_pace(-1)
if task.undone then undo_start(task.id, task.attempts) end
--#elif TO_TAKEN
read_pace(0, true)
--#else
read_pace(0)
--#end
if pace.turn == 0 then give_turn() end  --#if TO_READY
--#elif TO_TAKEN
-- A taken task remains the head of its lane.
--#else
lane = task.lane or 'nil'
lane_record = call('HGET', M .. ':lanes', lane)
lane_key, lane_head = false, false
if lane_record and byte(lane_record, 1) == 254 then
  lane_head = sub(lane_record, 2)
elseif lane_record then
  lane_key, lane_head = sub(lane_record, 1, 5), sub(lane_record, 6)
end
--#end
--#end
