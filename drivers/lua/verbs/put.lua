-- Add a task that has no key.
-- ARGV  6 its flags, 7 the rest of its header and its data, 8 microseconds until its due time ('': none), 9 its
--       priority ('': 0), 10 its lane ('': none), 11 the capacity of the tube ('': unlimited), 12 how many callers in
--       the process wait if the tube is full ('': none), 13 the process
-- reply  the moment of the put in 7 bytes, then the id; nil if the tube is full
--#include begin
if replayed then return replayed end
--#if ROOM
local needed, capacity, callers, process = 1, tonumber(ARGV[11]), ARGV[12] or '', ARGV[13]
--#if LANE_ROOM
local name = byte(ARGV[6]) % 128 >= 64 and (ARGV[10] or '') or 'nil'
local lanes, more = { name }, { [name] = 1 }
--#end
--#include check_room
--#end
--#include next_id
--#flat
local created = pack('>I7', now)
local result = created .. META.next
task.id, task.value, task.attempts = META.next, ARGV[6] .. created .. ARGV[7], 0
task.created = now  --#if TIMED|RANK
task.pri = tonumber(ARGV[9])  --#if PRI
-- The flags show if it has a lane, because a lane may be called ''.
task.lane = byte(ARGV[6]) % 128 >= 64 and (ARGV[10] or '')  --#if LANE
--#if RANK
-- If the rank fails for this task, it must fail before the first write.
do
--#include place_of
end
--#end
META.next = task.id + 1
fill_lanes(more)  --#if LANE_ROOM
--#if TIMED
local span = tonumber(ARGV[8])
local due = span and now + span
if byte(ARGV[6]) % 2 == 1 then
--#move put_delayed new
else
--#move put new
end
--#else
--#move put new
--#end
if callers ~= '' then call('HDEL', M .. ':waiting', process .. ':room') end  --#if ROOM
--#done result
return result
