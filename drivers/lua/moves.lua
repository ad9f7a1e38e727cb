-- A row of the table for many tasks at once, the local `tasks`: what move.lua does for each, where there are no lanes and
-- nobody listens. A command goes to all of them, and the order is the same: first remove, then add.
--
-- A script says `--#moves why state`. What is `due` in move.lua is `task.due` here, in and out. Only new tasks, takes and
-- acks come in such numbers that it pays: the other rows have no text here.
--#if PLAIN
-- Where a task has nothing but an id and data the script has made these columns itself, without tables for tasks: `ids`;
-- of new ones `stored`, id and value of each, and `order`, what `append_all` gets.
--#else
local ids, stored, order, dues, undue = {}, {}, {}, {}, {}
for n = 1, #tasks do
  local task = tasks[n]
  ids[n] = task.id
  task.state = TO
--#if WAS_NEW
  stored[2 * n - 1], stored[2 * n] = task.id, task.value
--#if TO_READY
--#if LIST
  order[n] = task.id
--#else
  order[2 * n - 1], order[2 * n] = '0', place(task)
--#end
--#end
--#elif TO_TAKEN
  if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
  task.take = this_take
--#end
--#if TIMED
--#if TO_DONE
  undue[n] = pack('>I6', task.id)
--#else
--#if TO_TAKEN
--#if ENDS_TAKEN
  if task.ttl and (not task.due or dead_of(task) < task.due) then task.due = dead_of(task) end
--#end
--#end
  local due = task.due
  if due then
    dues[#dues + 1], dues[#dues + 2] = string.format('%.0f', due), pack('>I6', task.id)
    if not soonest or due < soonest then
      soonest = due
    end
--#if WAS_NEW
--#else
  elseif task.ttl or task.ttr then
    undue[#undue + 1] = pack('>I6', task.id)
--#end
  end
--#end
--#end
end
--#end
-- Leave.
--#if WAS_TAKEN
many('ZREM', M .. ':taken', ids)
--#end
-- Enter.
--#if TO_DONE
many('HDEL', M .. ':tasks', ids)
--#elif TO_TAKEN
-- One session takes them all by one call.
local score, scores = string.format('%.0f', ARGV[1] * TAKES + this_take), {}
for n = 1, #ids do scores[2 * n - 1], scores[2 * n] = score, ids[n] end
many('ZADD', M .. ':taken', scores)
--#elif WAS_NEW
many('HSET', M .. ':tasks', stored)
--#if TO_READY
append_all(order)
--#elif TO_DELAYED
call('HINCRBY', M, 'delayed', #ids)
--#end
--#end
-- Watch the time.
--#if TIMED
many('ZREM', M .. ':due', undue)
--#if TO_DONE
--#else
many('ZADD', M .. ':due', dues)
if soonest and soonest < (tonumber(META.soonest) or math.huge) then call('HSET', M, 'soonest', soonest) end
--#end
--#end
-- Count.
COUNT
