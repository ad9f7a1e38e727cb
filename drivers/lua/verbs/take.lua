-- Take the first task that may be taken.
-- ARGV  6 how many callers in the process are going to wait if there is none ('': none), 7 the process
-- answers  what `shown` says of the task; the next moment at which something is due (0: never) if there is none
--#include begin
local id
if replayed then
--#slow
  local known, _, attempts = unpack_struct('>I8c1I4', #replayed > 0 and replayed or string.rep('\0', 13))
  local task = find(known)
  local same = task and task.state == 't' and task.attempts == attempts
  if same and task.owner == tonumber(ARGV[1]) then return shown(task) end
  -- Who waits asks again. This may come from a connection that nobody has any more: nobody would get a task.
  if (ARGV[6] or '') ~= '' then id = false end
--#fast
end
if id == nil then id = pop() end
if id == nil then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
if not id then
  if (ARGV[6] or '') ~= '' then
--#slow
    local watched = WATCHED
    call('HSET', M, ARGV[3], ARGV[4] .. ':', 'waiting', watched)
    call('HSET', M .. ':waiting', ARGV[7], string.format('%s %.0f', ARGV[6], watched))
--#fast
  end
--#include flush
  return soonest or 0
end
local task = read(id, call('HGET', M .. ':tasks', id))
local due = task.ttr and now + task.ttr
task.owner = ARGV[1]
--#move take r
local answer = facts(task)
--#done answer
return answer .. task.value
