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
local limit, leased, bare = tonumber(ARGV[6]), false, false
--#include take_some
if values then
  local all, turns = table.concat(ids, ' '), table.concat(attempts, ' ')
  local answer = all .. ':' .. turns
--#done answer
  return { all, turns, '', stuck and '1' or '', values }
end
if #tasks == 0 then
--#include flush
  return {}
end
local reply = shown_all(tasks, stuck)
local answer = reply[1] .. ':' .. reply[2]
--#done answer
return reply
