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
--#if WAS_READY|WAS_TAKEN|TO_READY|TO_TAKEN
--#include lane_before
--#end
-- Leave.
--#if WAS_TAKEN
call('ZREM', M .. ':taken', task.id)
--#if PACED
lane_taken = pace.full
--#elif LANE
--#if TO_TAKEN
--#else
lane_head = false
--#end
--#end
--#elif WAS_BURIED
call('ZREM', M .. ':buried', place(task))
--#elif WAS_DELAYED
call('HINCRBY', M, 'delayed', -1)
--#elif WAS_READY
--#if TO_TAKEN
--#if PACED
lane_head = false
--#end
--#else
pull(task)
--#end
--#end
task.state = TO
--#if TO_BURIED
--#if WAS_BURIED
--#else
note_past(task, 2)
--#end
--#if BURIED_TTL
--#if WAS_BURIED
--#else
-- Its ttl becomes buried_ttl, counted from now (false: unlimited). As in `live`.
task.ttl = BURIED_FOR and math.max(now - task.created, 0) + BURIED_FOR
--#end
--#end
--#end
--#if UPDATES
change(task)
--#end
-- Enter.
--#if TO_DONE
call('HDEL', M .. ':tasks', task.id)
--#if LANE_ROOM
leave_lane(task.lane or 'nil', 1)
--#end
--#if QUIET
--#else
if task.key then
--#slow
  leave_key(task.key, task.id, task.key_ttl)
--#fast
end
--#if KEEPS
--#if UNPUT
--#else
if task.keep_done then keep_task(task, WHY) end
--#end
--#end
--#end
--#elif TO_TAKEN
--#if WAS_READY
if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
task.take = this_take
--#if RATED
use_tokens(1)
--#end
--#end
call('ZADD', M .. ':taken', task.owner * TAKES + task.take, task.id)
--#else
--#if WAS_NEW
call('HSET', M .. ':tasks', task.id, task.value)
--#if TO_READY
--#if LANE
local first = lane_head
--#end
--#include append
--#end
--#else
write(task)
--#if TO_READY
push(task)
--#end
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
--#if ENDS_TAKEN
if task.ttl and (not due or task.created + task.ttl < due) then due = task.created + task.ttl end
--#end
--#elif TO_READY|TO_BURIED
--#if WAS_NEW
--#else
due = task.ttl and task.created + task.ttl
--#if WAS_TAKEN
--#if ENDS_TAKEN
--#else
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
--#include lane_after
--#end
--#if WAS_TAKEN
--#if TELLS
tell_holder(task, EVENT)
--#end
--#end
-- Publish the change, and count it.
--#if QUIET
--#else
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
