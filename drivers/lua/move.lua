-- Change the state of the local `task`: the only place where a state changes. This text is expanded for one row of
-- MOVES in moves.py, with the knobs WAS_… and TO_… for the states before and after.
--
-- --#move why              a branch for each state from which the table allows this move; any other state is an error
-- --#move why state        only the branch for this state
-- --#move why state quiet  the same for a task without a key, without listeners
--
-- The local `due` is the moment when a delay or a take ends; for a new task its own due time. Removals come before
-- additions: the server does not check its memory after the first write, so a move is complete even if memory is
-- full.
-- in: task, due?, change?
--#if WAS_READY|WAS_TAKEN|TO_READY|TO_TAKEN
--#include lane_before
--#end
-- Leave the old state.
--#if WAS_TAKEN
call('ZREM', M .. ':taken', task.id)
--#if PACED
lane_taken = pace.full
--#elif LANE
lane_head = false  --#unless TO_TAKEN
--#end
--#elif WAS_BURIED
call('ZREM', M .. ':buried', place(task))
--#elif WAS_DELAYED
call('HINCRBY', M, 'delayed', -1)
--#elif WAS_READY
--#if TO_TAKEN
lane_head = false  --#if PACED
--#else
pull(task)
--#end
--#end
task.state = TO
--#if TO_BURIED
count_event(task, 2)  --#unless WAS_BURIED
--#if BURIED_TTL
-- Its ttl becomes buried_ttl, counted from now (false: unlimited). As in `set_ttl`.
task.ttl = BURIED_FOR and math.max(now - task.created, 0) + BURIED_FOR  --#unless WAS_BURIED
--#end
--#end
change(task)  --#if UPDATES
-- Enter the new state.
--#if TO_DONE
call('HDEL', M .. ':tasks', task.id)
leave_lane(task.lane or 'nil', 1)  --#if LANE_ROOM
--#unless QUIET
if task.key then
--#slow
  free_key(task.key, task.id, task.key_ttl)
--#fast
end
--#if KEEPS
if task.keep_done then keep_task(task, WHY) end  --#unless UNPUT
--#end
--#end
--#elif TO_TAKEN
--#if WAS_READY
if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
task.take = this_take
use_tokens(1)  --#if RATED
--#end
call('ZADD', M .. ':taken', task.owner * TAKES + task.take, task.id)
--#else
--#if WAS_NEW
call('HSET', M .. ':tasks', task.id, task.value)
--#if TO_READY
local first = lane_head  --#if LANE
--#include append
--#end
--#else
write(task)
push(task)  --#if TO_READY
--#end
--#if TO_BURIED
call('ZADD', M .. ':buried', 0, place(task))
--#elif TO_DELAYED
call('HINCRBY', M, 'delayed', 1)
--#end
--#end
-- Update its due time.
--#if TIMED
--#if TO_DONE
--#if WAS_TAKEN
--#if ENDS_TAKEN
if task.ttl or task.ttr then
--#else
if task.ttr then
--#end
--#else
if task.ttl or task.ttr or WAS == '~' then
--#end
  call('ZREM', M .. ':due', pack('>I6', task.id))
end
task.due = nil
--#else
--#if TO_TAKEN
if task.ttl and (not due or task.created + task.ttl < due) then due = task.created + task.ttl end  --#if ENDS_TAKEN
--#elif TO_READY|TO_BURIED
--#unless WAS_NEW
due = task.ttl and task.created + task.ttl
--#if WAS_TAKEN
--#unless ENDS_TAKEN
if due and due < now then
--#slow
  call('HSET', M, 'late', now)
--#fast
end
--#end
--#end
--#end
--#end
--#if UPDATES
if due then
--#elif TO_BURIED
if due then
--#elif WAS_READY
-- A ready task with a ttl is already in ':due' with this moment.
if due and due ~= (task.ttl and task.created + task.ttl) then
--#else
if due then
--#end
  call('ZADD', M .. ':due', due, pack('>I6', task.id))
  if not soonest or due < soonest then
    soonest = due
    call('HSET', M, 'soonest', due)
  end
--#if WAS_NEW
--#elif BURIED_TTL
elseif not due then
  call('ZREM', M .. ':due', pack('>I6', task.id))
--#else
elseif not due and (task.ttl or task.ttr or WAS == '~') then
  call('ZREM', M .. ':due', pack('>I6', task.id))
--#end
end
task.due = due
--#end
--#end
--#if WAS_READY|WAS_TAKEN|TO_READY|TO_TAKEN
-- Store its lane.
--#if LANE
--#if PACED
--#if TO_TAKEN
pace.taken = pace.taken + 1
--#if WAS_READY
note_start(task.id, task.attempts)
update_cooldown()
--#end
--#end
--#if WAS_TAKEN
if task.undone then update_cooldown() else note_end() end  --#unless TO_TAKEN
--#end
write_pace()
--#elif TO_TAKEN
--#else
--#if WAS_READY|WAS_TAKEN
-- The lane is free and has no head: offer its next task.
if lane_key and not lane_head then
--#include next_in_lane
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
--#unless WAS_NEW
elseif lane_record then
  call('HDEL', M .. ':lanes', lane)
--#end
end
--#end
--#end
--#end
--#if WAS_TAKEN
notify_holder(task, EVENT)  --#if TELLS
--#end
-- Publish the change, and count it.
--#unless QUIET
if listening then
--#slow
--#if TO_DONE
  -- Send the record of a kept task: ':done' may forget it as soon as another task ends.
  publish(EVENT, task.id, task.state, task.attempts, task.record and 1 or 0, task.due, task.record or task.value)
--#else
  publish(EVENT, task.id, task.state, task.attempts, task.state == 't' and task.take or 0, task.due, task.value)
--#end
--#fast
end
--#end
COUNT
