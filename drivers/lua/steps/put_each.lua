-- Put the tasks of a batch one by one: the tasks in `words` from index `at`, with ids from `id`.
-- in: words, at, id, size, created, more?
local all = {}
while #all < size do
  local flags, count = words[at + 1], words[at] + 0
--#if LANE
  -- The head of put_many.lua has the format of the words.
  local own, named = count < 0, false
  local laned = byte(flags) % 128 >= 64
  if own then count = -count elseif laned then named = words[at + 4] end
  local head = flags .. created .. (own and '' or words[at + 5])
--#else
  local head = flags .. created .. words[at + 5]
--#end
  local due = words[at + 2] ~= '' and now + words[at + 2]  --#if TIMED
  local pri = tonumber(words[at + 3])  --#if PRI
--#if LANE
  at = at + (own and 3 or 5)
--#else
  at = at + 5
--#end
  for _ = 1, count do
    at = at + 1
--#if LANE
    if own then
      if laned then named = words[at] end
      at = at + 1
    end
--#end
    local task = {
      id = string.format('%d', id), value = head .. words[at], attempts = 0, state = 'new',
      created = now,  --#if TIMED|RANK
      due = due,  --#if TIMED
      pri = pri,  --#if PRI
      lane = named,  --#if LANE
    }
    place(task)  --#if RANK
    id = id + 1
    all[#all + 1] = task
  end
  at = at + 1
end
META.next = id
fill_lanes(more)  --#if LANE_ROOM
for n = 1, size do
  local task, due = all[n], all[n].due
--#if TIMED
  if byte(task.value) % 2 == 1 then
--#move put_delayed new
  else
--#move put new
  end
--#else
--#move put new
--#end
end
