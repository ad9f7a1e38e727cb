-- Add all of the given tasks, or none.
-- ARGV  6 the number of tasks, 7 the list with the uploaded words ('': the words are ARGV[12…]), 8 the number of words,
--       9 the capacity of the tube ('': unlimited), 10 how many callers in the process wait if the tube is full ('':
--       none), 11 the process, 12… words. For tasks with equal options: their number; ARGV[6], [8], [9] and [10] of
--       put; the rest of their header; the data of each. If they differ only in their lanes: their number, negative;
--       ARGV[6], [8] and [9] of put; the lane of each, and the rest of its header with its data
-- reply  the moment of the put in 7 bytes, then the id of the first task; nil if the tube is full
--#include begin
if replayed then return replayed end
local size = tonumber(ARGV[6])
--#if ROOM
local needed, capacity, callers, process = size, tonumber(ARGV[9]), ARGV[10] or '', ARGV[11]
--#if LANE_ROOM
--#else
--#include room
--#end
--#end
local words, at = ARGV, 12
if ARGV[7] ~= '' then
  words, at = staged_words(ARGV[7], ARGV[8] + 0), 1
  if not words then return redis.error_reply('STAGEGONE the uploaded tasks are gone') end
end
--#if LANE_ROOM
local lanes, more, here, seen = {}, {}, at, 0
while seen < size do
  -- The format is that of put_all.lua.
  local count, laned = words[here] + 0, byte(words[here + 1]) % 128 >= 64
  local own = count < 0
  if own then count = -count end
  for n = 1, own and count or 1 do
    local name = laned and words[here + 2 + 2 * n] or 'nil'
    if not more[name] then lanes[#lanes + 1], more[name] = name, 0 end
    more[name] = more[name] + (own and 1 or count)
  end
  seen, here = seen + count, here + (own and 4 + 2 * count or 6 + count)
end
--#include room
--#end
--#include next_id
local created, id = pack('>I7', now), META.next + 0
local answer = created .. META.next
--#if PACED
--#include put_each
--#else
if listening then
--#slow
--#include put_each
--#fast
else
--#include put_all
end
--#end
if ARGV[7] ~= '' then call('UNLINK', M .. ':staged:' .. ARGV[7]) end
--#if ROOM
if callers ~= '' then call('HDEL', M .. ':waiting', process .. ':room') end
--#end
--#done answer
return answer
