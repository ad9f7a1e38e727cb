-- Take the first tasks, up to `limit`, until their data have `room` bytes. `leased`: their ttr does not run. Leaves
-- either `tasks`, or the columns `ids`, `attempts`, due times (-1: none) and, unless `bare`, `values`; and `stuck`:
-- there are more tasks, but they were not found yet.
-- in: limit, room, leased, bare
-- out: tasks, ids, attempts, due_times, values, stuck
local tasks, ids, attempts, due_times, values, stuck, popped = {}, {}, {}, {}, nil, false, nil
--#if PACED
local size = 0
for n = 1, limit do
  if n > MOST or size >= room then
    stuck = true
    break
  end
  local id = pop()
  if not id then break end
  local task = read(id, call('HGET', M .. ':tasks', id))
  local due = not leased and task.ttr and now + task.ttr
  task.owner = ARGV[1]
--#move take r
  tasks[n] = task
  size = size + #task.value
end
--#else
-- Read the values of the popped tasks until one reply is full, and return the other tasks to their places.
local function within()
  if bare then return all_of('HMGET', M .. ':tasks', ids) end
  local found, size, count, all = {}, 0, 0, #ids
  while count < all and size < room do
    -- Read small tasks by the hundred, which saves commands.
    local step = count > 0 and size < 1000 * count and 100 or 20
    local some = call('HMGET', M .. ':tasks', unpack(ids, count + 1, math.min(count + step, all)))
    for n = 1, #some do
      local value = some[n]
      found[count + n], size = value, size + #value
    end
    count = count + #some
  end
  if count < all then
--#slow
    unpop(ids, count + 1, popped)
    stuck = true
--#fast
  end
  return found
end
-- Released tasks are in ':back', not in the list: with `strays` = 0 all tasks are untaken.
local untaken = strays == 0  --#if LIST
ids, stuck, popped = pop_some(limit)
if stuck and #ids == 0 then
--#include flush
  return redis.error_reply('AGAIN call again')
end
--#if STREAM_TAKE
if room < math.huge then
--#slow
  local size = 0
  for n = 1, #ids do
    if size >= room then
      unpop(ids, n, popped)
      break
    end
    size = size + call('HSTRLEN', M .. ':tasks', ids[n])
  end
--#fast
end
--#end
if #ids > 0 and not listening then
  local text_of = {}
--#if TIMED
  local dues, undue, format = {}, {}, string.format
  values = within()
  for n = 1, #ids do
--#include take_column
  end
--#else
--#if LIST
  local known = bare and untaken
--#else
  local known = false
--#end
  values = known and {} or within()
  for n = 1, #ids do
    local count = known and 1 or math.min(attempts_of(values[n]) + 1, MOST_ATTEMPTS)
    local text = text_of[count]
    if not text then
      text = string.format('%d', count)
      text_of[count] = text
    end
    attempts[n] = text
  end
--#end
--#moves take r
end
if #ids > 0 and not values then
--#slow
  local stored = within()
  for n = 1, #ids do
    local task = read(ids[n], stored[n])
    local due
    due = not leased and task.ttr and now + task.ttr  --#if TIMED
    task.owner = ARGV[1]
--#move take r
    tasks[n] = task
  end
--#fast
end
--#end
