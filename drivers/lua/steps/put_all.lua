-- Put the tasks of a batch together, with the columns of moves.lua: the tasks in `words` from index `at`, with ids
-- from `id`. All are prepared before the first write, so a rank function that fails for one of them changes nothing.
local ready, delayed = { {}, {}, {}, {}, {} }, { {}, {}, {}, {}, {} }
local last, format = id + size, string.format
--#if LIST
--#else
local task = { created = now }
--#end
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
--#if PRI
  task.pri = tonumber(words[at + 3])
--#end
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
--#if LIST
--#else
    task.id = id
--#if LANE
    order[n], lanes[n] = place(task), named
--#else
    order[2 * n - 1], order[2 * n] = '0', place(task)
--#end
--#end
--#if TIMED
    if due then dues[#dues + 1], dues[#dues + 2] = moment, pack('>I6', id) end
--#end
    id = id + 1
  end
  at = at + 1
end
META.next = id
--#if LANE_ROOM
fill_lanes(more)
--#end
if #ready[1] > 0 then
  local ids, stored, order, dues, lanes = unpack(ready)
--#if LIST
  order = ids
--#end
--#moves put new
end
--#if TIMED
if #delayed[1] > 0 then
  local ids, stored, _, dues = unpack(delayed)
--#moves put_delayed new
end
--#end
