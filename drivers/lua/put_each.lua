-- Put the tasks of a batch one by one: of `words`, from `at`, with ids from `id`.
local all = {}
while #all < size do
  local flags = words[at + 1]
  local head = flags .. created .. words[at + 5]
--#if TIMED
  local due = words[at + 2] ~= '' and now + words[at + 2]
--#end
--#if PRI
  local pri = tonumber(words[at + 3])
--#end
--#if LANE
  local named = byte(flags) % 128 >= 64 and words[at + 4]
--#end
  local count = tonumber(words[at])
  at = at + 5
  for n = at + 1, at + count do
    local task = {
      id = string.format('%d', id), value = head .. words[n], attempts = 0, state = 'new',
--#if TIMED|RANK
      created = now,
--#end
--#if TIMED
      due = due,
--#end
--#if PRI
      pri = pri,
--#end
--#if LANE
      lane = named,
--#end
    }
--#if RANK
    place(task)
--#end
    id = id + 1
    all[#all + 1] = task
  end
  at = at + count + 1
end
META.next = id
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
