-- Take the first tasks that may be taken.
-- ARGV  6 how many at most
-- answers  their ids, their attempts, when they are due (-1: never; '' where nothing is timed), each in one string; '1' if
--          there are more, although they are fewer than asked for; then the tasks; nothing if there is none
--#include begin
if replayed then
--#slow
  local tasks, ids, attempts = {}, {}, {}
  for id, attempts in string.gmatch(replayed, '(%d+) (%d+)') do
    local task = find(id)
    local same = task and task.state == 't' and task.attempts == tonumber(attempts)
    if same and task.owner == tonumber(ARGV[1]) then tasks[#tasks + 1] = task end
  end
  if #tasks > 0 then return shown_all(tasks) end
--#fast
end
local tasks, stuck = {}, false
--#if LANE
for n = 1, tonumber(ARGV[6]) do
  local id = pop()
  if not id then break end
  local task = read(id, call('HGET', M .. ':tasks', id))
  local due = task.ttr and now + task.ttr
  task.owner = ARGV[1]
--#move take r
  tasks[n] = task
end
--#else
local ids
ids, stuck = pop_some(tonumber(ARGV[6]))
if stuck and #ids == 0 then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
if #ids > 0 then
  local values = all_of('HMGET', M .. ':tasks', ids)
  for n = 1, #ids do
    local task = read(ids[n], values[n])
    task.owner = ARGV[1]
--#if TIMED
    task.due = task.ttr and now + task.ttr
--#end
    tasks[n] = task
  end
  if listening then
--#slow
    for n = 1, #tasks do
      local task, due = tasks[n], tasks[n].due
--#move take r
    end
--#fast
  else
--#moves take r
  end
end
--#end
if #tasks == 0 then
--#include flush
  return {}
end
local reply = shown_all(tasks, stuck)
local taken = {}
for n = 1, #tasks do taken[n] = tasks[n].id .. ' ' .. tasks[n].attempts end
local answer = table.concat(taken, ',')
--#done answer
return reply
