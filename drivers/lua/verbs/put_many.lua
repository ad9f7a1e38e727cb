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
--#unless LANE_ROOM
--#include check_room
--#end
--#end
--#include put_words
--#if LANE_ROOM
local lanes, more, here, seen = {}, {}, at, 0
while seen < size do
  -- The head of this file has the format of the words.
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
--#include check_room
--#end
--#include next_id
local created, id = pack('>I7', now), META.next + 0
local result = created .. META.next
--#if PACED
--#include put_each
--#else
if listening then
--#slow
--#include put_each
--#fast
else
-- Put the tasks of a batch together, with the columns of moves.lua: the tasks in `words` from index `at`, with ids
-- from `id`. All are prepared before the first write, so a rank function that fails for one of them changes nothing.
local ready, delayed = { {}, {}, {}, {}, {} }, { {}, {}, {}, {}, {} }
local last, format = id + size, string.format
local task = { created = now }  --#unless LIST
while id < last do
  local flags, count = words[at + 1], words[at] + 0
--#if LANE
  -- With a negative count each task brings its own lane, and the rest of its header is part of its data.
  local own, named = count < 0, 'nil'
  local laned = byte(flags) % 128 >= 64
  if own then count = -count elseif laned then named = words[at + 4] end
  local head = flags .. created .. (own and '' or words[at + 5])
--#else
  local head = flags .. created .. words[at + 5]
--#end
  local ids, stored, order, dues, lanes = unpack(byte(flags) % 2 == 1 and delayed or ready)
  task.pri = tonumber(words[at + 3])  --#if PRI
--#if TIMED
  local due = words[at + 2] ~= '' and now + words[at + 2]
  local moment = due and format('%.0f', due)
  if due and (not soonest or due < soonest) then soonest = due end
--#end
  local first = #ids
--#if LANE
  at = at + (own and 3 or 5)
--#else
  at = at + 5
--#end
  for n = first + 1, first + count do
    local text = format('%d', id)
    at = at + 1
--#if LANE
    if own then
      if laned then named = words[at] end
      at = at + 1
    end
--#end
    ids[n], stored[2 * n - 1], stored[2 * n] = text, text, head .. words[at]
--#unless LIST
    task.id = id
--#if LANE
    order[n], lanes[n] = place(task), named
--#else
    order[2 * n - 1], order[2 * n] = '0', place(task)
--#end
--#end
    if due then dues[#dues + 1], dues[#dues + 2] = moment, pack('>I6', id) end  --#if TIMED
    id = id + 1
  end
  at = at + 1
end
META.next = id
fill_lanes(more)  --#if LANE_ROOM
if #ready[1] > 0 then
  local ids, stored, order, dues, lanes = unpack(ready)
  order = ids  --#if LIST
--#moves put new
end
--#if TIMED
if #delayed[1] > 0 then
  local ids, stored, _, dues = unpack(delayed)
--#moves put_delayed new
end
--#end
end
--#end
if ARGV[7] ~= '' then call('UNLINK', M .. ':staged:' .. ARGV[7]) end
if callers ~= '' then call('HDEL', M .. ':waiting', process .. ':room') end  --#if ROOM
--#done result
return result
