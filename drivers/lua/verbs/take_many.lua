-- Take the first tasks that may be taken.
-- ARGV  6 how many at most
-- answers  {their ids, their attempts, when they are due (-1: never; '' where nothing is timed), each in one string; '1' if
--          there are more, although they are fewer than asked for; the tasks}; nothing if there is none
--#include begin
if replayed then
--#slow
  local tasks, attempts = {}, string.gmatch(string.match(replayed, ':(.*)'), '%d+')
  for id in string.gmatch(string.match(replayed, '(.*):'), '%d+') do
    local task, before = find(id), tonumber(attempts())
    local same = task and task.state == 't' and task.attempts == before
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
--#if PLAIN
if #ids > 0 and not listening then
  local values = all_of('HMGET', M .. ':tasks', ids)
  local attempts, scores, text_of, score_of = {}, {}, {}, {}
  for n = 1, #ids do
    local count = attempts_of(values[n]) + 1
    local text = text_of[count]
    if not text then
      text = string.format('%d', count)
      text_of[count], score_of[count] = text, string.format('%.0f', ARGV[1] * TURNS + count)
    end
    attempts[n], scores[2 * n - 1], scores[2 * n] = text, score_of[count], ids[n]
  end
--#moves take r
  local all, turns = table.concat(ids, ' '), table.concat(attempts, ' ')
  local answer = all .. ':' .. turns
--#done answer
  return { all, turns, '', stuck and '1' or '', values }
end
--#end
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
if #tasks == 0 then
--#include flush
  return {}
end
local reply = shown_all(tasks, stuck)
local answer = reply[1] .. ':' .. reply[2]
--#done answer
return reply
