-- Take the first tasks that may be taken, up to `limit`; `leased`: their ttr does not run. Leaves `tasks`, or where tasks are
-- nothing but ids and data their `ids`, `attempts` and `values`, those unless `bare`; and `stuck`: there are more, which were
-- not found yet.
local tasks, ids, attempts, values, stuck = {}, {}, {}, nil, false
--#if LANE
for n = 1, limit do
  local id = pop()
  if not id then break end
  local task = read(id, call('HGET', M .. ':tasks', id))
  local due = not leased and task.ttr and now + task.ttr
  task.owner = ARGV[1]
--#move take r
  tasks[n] = task
end
--#else
--#if LIST
-- Tasks that come back leave the list: where none has, all in it are new.
local untaken = loose == 0
--#end
ids, stuck = pop_some(limit)
if stuck and #ids == 0 then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
--#if PLAIN
if #ids > 0 and not listening then
  local scores, text_of, score_of = {}, {}, {}
--#if LIST
  local known = bare and untaken
--#else
  local known = false
--#end
  values = known and {} or all_of('HMGET', M .. ':tasks', ids)
  for n = 1, #ids do
    local count = known and 1 or attempts_of(values[n]) + 1
    local text = text_of[count]
    if not text then
      text = string.format('%d', count)
      text_of[count], score_of[count] = text, string.format('%.0f', ARGV[1] * TURNS + count)
    end
    attempts[n], scores[2 * n - 1], scores[2 * n] = text, score_of[count], ids[n]
  end
--#moves take r
end
--#end
if #ids > 0 and not values then
  local stored = all_of('HMGET', M .. ':tasks', ids)
  for n = 1, #ids do
    local task = read(ids[n], stored[n])
    task.owner = ARGV[1]
--#if TIMED
    task.due = not leased and task.ttr and now + task.ttr
--#end
    tasks[n] = task
  end
  local one_by_one = true
--#if PLAIN
--#else
  one_by_one = listening
  if not one_by_one then
--#moves take r
  end
--#end
  for n = 1, one_by_one and #tasks or 0 do
    local task, due = tasks[n], tasks[n].due
--#move take r
  end
end
--#end
