-- A held task is done, and the next one is taken.
-- ARGV  6 the id of the first, 7 the attempts by which the caller has it, 8 '1': it has a key
-- answers  '1' if the first was held, '0' if not, and then what `shown` says of the next; the first alone if there is none
--#include begin
if replayed then
--#slow
  local done = sub(replayed, 1, 1)
  if #replayed == 1 then return done end
  local id, _, attempts = unpack_struct('>I8c1I4', replayed, 2)
  local task = find(id)
  local same = task and task.state == 't' and task.attempts == attempts
  if same and task.owner == tonumber(ARGV[1]) then return done .. shown(task) end
  return done
--#fast
end
local done = '0'
do
  local task, due
--#if PLAIN
  if listening or ARGV[8] then
--#slow
    task = held()
--#fast
  elseif attempts_held() then
    task = { id = ARGV[6], state = 't' }
  end
--#else
  task = held()
--#end
  if task then
    done = '1'
--#move ack t
  end
end
-- nil, too many stale ids, is no answer: the caller takes once more for itself.
local id = pop()
if not id then
--#done done
  return done
end
local task = read(id, call('HGET', M .. ':tasks', id))
local due = task.ttr and now + task.ttr
task.owner = ARGV[1]
--#move take r
local answer = done .. facts(task)
--#done answer
return answer .. task.value
