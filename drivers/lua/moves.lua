-- One row of MOVES for many tasks: the same steps as move.lua, with one command for all tasks. Only for tubes whose
-- lanes are not throttled, without listeners. Puts, takes and acks are frequent enough for this to pay.
--
-- `--#moves why state` uses columns that the script has built:
-- ids     the id of each task
-- stored  of new tasks: id and value of each
-- order   of new ready tasks: the argument of `append_all`, with lanes the place of each
-- lanes   with lanes, except for a take: the lane of each
-- dues    of tasks that have a due time now: the moment and the id in 6 bytes of each
-- undue   of tasks that no longer have one: the id in 6 bytes
-- in: ids, stored?, order?, lanes?, dues?, undue?
many('ZREM', M .. ':taken', ids)  --#if WAS_TAKEN
-- Enter.
--#if TO_DONE
many('HDEL', M .. ':tasks', ids)
--#if LANE_ROOM
local gone = {}
for n = 1, #lanes do gone[lanes[n]] = (gone[lanes[n]] or 0) + 1 end
for name, count in pairs(gone) do leave_lane(name, count) end
--#end
free_lanes(lanes)  --#if LANE
--#elif TO_TAKEN
-- One call of one session takes all tasks.
local score, scores = string.format('%.0f', ARGV[1] * TAKES + this_take), {}
for n = 1, #ids do scores[2 * n - 1], scores[2 * n] = score, ids[n] end
many('ZADD', M .. ':taken', scores)
--#elif WAS_NEW
many('HSET', M .. ':tasks', stored)
--#if TO_READY
--#if LANE
append_all(order, lanes)
--#else
append_all(order)
--#end
--#elif TO_DELAYED
call('HINCRBY', M, 'delayed', #ids)
--#end
--#end
-- Update due times.
--#if TIMED
many('ZREM', M .. ':due', undue)  --#unless WAS_NEW
--#unless TO_DONE
many('ZADD', M .. ':due', dues)
if soonest and soonest < (tonumber(META.soonest) or math.huge) then call('HSET', M, 'soonest', soonest) end
--#end
--#end
--#if RATED
use_tokens(#ids)  --#if TO_TAKEN
--#end
-- Count.
COUNT
