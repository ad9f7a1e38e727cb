-- A row of the table for many tasks at once: what move.lua does for each, where lanes are not throttled and nobody listens. A
-- command goes to all of them, and the order is the same: first remove, then add.
--
-- A script says `--#moves why state`. It has made columns of the tasks: `ids`; of new ones `stored`, id and value of each, and
-- of ready ones `order`, what `append_all` gets; where there are lanes `lanes`, the lane of each, save of taken ones, and of new
-- ones `order` is their places. `dues`: those that are due now by themselves, the moment and the id in 6 bytes of each; `undue`:
-- those that are not, or no more. Only new tasks, takes and acks come in such numbers that it pays.
-- Leave.
--#if WAS_TAKEN
many('ZREM', M .. ':taken', ids)
--#end
-- Enter.
--#if TO_DONE
many('HDEL', M .. ':tasks', ids)
--#if LANE_ROOM
local gone = {}
for n = 1, #lanes do gone[lanes[n]] = (gone[lanes[n]] or 0) + 1 end
for name, count in pairs(gone) do leave_lane(name, count) end
--#end
--#if LANE
free_all(lanes)
--#end
--#elif TO_TAKEN
-- One session takes them all by one call.
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
-- Watch the time.
--#if TIMED
--#if WAS_NEW
--#else
many('ZREM', M .. ':due', undue)
--#end
--#if TO_DONE
--#else
many('ZADD', M .. ':due', dues)
if soonest and soonest < (tonumber(META.soonest) or math.huge) then call('HSET', M, 'soonest', soonest) end
--#end
--#end
-- Count.
COUNT
