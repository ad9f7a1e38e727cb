-- List tasks in the order of their ids.
-- ARGV  6 the id at which to begin, 7 the maximum number, bounded, 8 'r': ready tasks, '': any, 9 '=' and a lane, '':
--       any, 10 a filter, 11 '1': in the reverse order; then 6 is the id below which to begin, '': at the last one
-- reply  {ARGV 6 of the next call; 0: the end}, each task as `filter_of` says, and the id of the next put
--#include begin
--#include flush
local most, back = tonumber(ARGV[7]), ARGV[11] == '1'
local accept, weight = filter_of(ARGV[10])
local first = back and (ARGV[6] == '' and META.next or ARGV[6]) - 1 or tonumber(ARGV[6])
local way = back and -1 or 1
local state, lane = ARGV[8], ARGV[9]
-- True if a stored task may belong to the lane: this excludes most others before they are decoded.
local named = text(sub(lane, 2))
local function may_be(value)
  if lane == '' or (lane == '=nil' and byte(value, 1) % 128 < 64) then return true end
  return string.find(sub(value, 1, 32 + #named), named, 9, true)
end
local ids, last
if call('HLEN', M .. ':tasks') <= 1000 then
  ids = {}
  for _, id in ipairs(call('HKEYS', M .. ':tasks')) do
    if (id - first) * way >= 0 then ids[#ids + 1] = tonumber(id) end
  end
  table.sort(ids, function(a, b) return (b - a) * way > 0 end)
  last = #ids
else
  -- Ids below `oldest` do not exist.
  local oldest = tonumber(call('HGET', M, 'oldest') or 0)
  if back then last = first - oldest + 1 else
    first = math.max(first, oldest)
    last = META.next - first
  end
  last = math.min(5000, last)
end
local found, looked, size, n = { 0 }, 0, 0, 0
-- Limit the skipped tasks as well: they cost nearly as much as the others.
while n < last and #found <= most and looked < 250 and size < BYTES do
  -- Read small tasks by the hundred, with fewer commands.
  local step = looked > 0 and size < 1000 * looked * weight and 100 or 20 / weight
  local some, there, values = {}, {}, {}
  for at = n + 1, math.min(n + step, last) do some[#some + 1] = ids and ids[at] or first + (at - 1) * way end
  local read_values = call('HMGET', M .. ':tasks', unpack(some))
  for at = 1, #some do
    if read_values[at] then there[#there + 1], values[#values + 1] = some[at], read_values[at] end
  end
  n = n + #some
  local scores = #there > 0 and call('ZMSCORE', M .. ':taken', unpack(there))
  for at = 1, #there do
    local value, score = values[at], scores[at]
    looked, size = looked + 1, size + #value * weight
    if (state == '' or (not score and byte(value, 1) % 4 == 0)) and may_be(value) then
      local task = read(there[at], value)
      if lane == '' or '=' .. (task.lane or 'nil') == lane then
        if score then set_taken(task, score + 0) end
        task.due = due_of(task.id)  --#if TIMED
        found[#found + 1] = accept(task)
      end
    end
    if #found > most or size >= BYTES then
      found[1] = back and there[at] or there[at] + 1
      found[#found + 1] = META.next
      return found
    end
  end
end
if ids then
  found[1] = (ids[n + 1] or (back and -1 or 0)) + (back and 1 or 0)
elseif back and first - n >= tonumber(call('HGET', M, 'oldest') or 0) then
  found[1] = first - n + 1
elseif not back and first + n < tonumber(META.next) then
  found[1] = first + n
end
found[#found + 1] = META.next
return found
