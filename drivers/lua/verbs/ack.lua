-- A held task is done.
-- ARGV  6 its id, 7 the attempts by which the caller has it ('': by whichever), 8 '1': the caller knows its data
-- answers  {id, state, attempts, due, the task, or its header if the caller knows its data, or '' if it knows all}
--#include begin
--#if PLAIN
if ARGV[8] ~= '' and not listening then
  if replayed then return { tonumber(ARGV[6]), '-', tonumber(replayed), -1, '' } end
  local task = holding()
  if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
--#move ack t
  return finish({ tonumber(ARGV[6]), '-', task.attempts, -1, '' }, task.attempts)
end
--#end
do
--#slow
if replayed then
--#slow
  local attempts, raw = string.match(replayed, '^(%d+) (.*)$')
  return { tonumber(ARGV[6]), '-', tonumber(attempts), -1, raw }
--#fast
end
local task, due = held()
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
--#move ack t
local reply = shown(task, ARGV[8] ~= '')
return finish(reply, reply[3] .. ' ' .. reply[5])
--#fast
end
