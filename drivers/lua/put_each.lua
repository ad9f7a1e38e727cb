-- Make tables of the tasks of a batch: of `words`, from `at`, with ids from `id`. They are put at once where that is possible, else one
-- by one.
local ready, delayed, all = {}, {}, {}
while #all < size do
  local flags = words[at + 1]
  local those = byte(flags) % 2 == 1 and delayed or ready
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
    those[#those + 1], all[#all + 1] = task, task
  end
  at = at + count + 1
end
META.next = id
local one_by_one = true
--#if LANE|PLAIN
--#else
one_by_one = listening
if not one_by_one then
  if #ready > 0 then
    local tasks = ready
--#moves put new
  end
  if #delayed > 0 then
    local tasks = delayed
--#moves put_delayed new
  end
end
--#end
for n = 1, one_by_one and size or 0 do
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
