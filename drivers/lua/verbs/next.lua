-- Ack a held task, and take the next one.
-- ARGV  6 the id of the first, 7 the take by which the caller has it, as for ack, 8 '1': it has a key
-- answers  '1' if the first was held, '0' if not, and then what `shown` says of the next; the first alone if there is none
--#include begin
if replayed then
--#slow
  local done = sub(replayed, 1, 1)
  if #replayed == 1 then return done end
  local task = held_one(unpack_struct('>I8', replayed, 2), this_take)
  if task then return done .. shown_held(task) end
  return done
--#fast
end
local done = '0'
do
  local task
--#if PLAIN
  local take = tonumber(ARGV[7]) or -1
  if listening or ARGV[8] or take < 0 then
--#slow
    task = held_one(ARGV[6], ARGV[7])
--#fast
  elseif (call('ZSCORE', M .. ':taken', ARGV[6]) or -1) + 0 == ARGV[1] * TAKES + take then
    task = { id = ARGV[6], state = 't' }
  end
--#else
  task = held_one(ARGV[6], ARGV[7])
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
-- HMGET since that is allowed: the head has run it.
local task = read(id, call('HMGET', M .. ':tasks', id)[1])
local due = task.ttr and now + task.ttr
task.owner = ARGV[1]
--#move take r
local answer = done .. facts(task)
--#done answer
return answer .. task.value
