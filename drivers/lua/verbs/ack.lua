-- A held task is done.
-- ARGV  6 its id, 7 the attempts by which the caller has it ('': by whichever), 8 '1': the caller knows its data, and that it has no
--       key; '2': that it has one
-- answers  what `shown` says of the task; its attempts alone if the caller knows the rest
--#include begin
--#if PLAIN
if ARGV[8] == '1' and not listening then
  if replayed then return tonumber(replayed) end
  local attempts = attempts_held()
  if not attempts then return redis.error_reply('NOTTAKEN this session does not have it') end
  local task = { id = ARGV[6], state = 't' }
--#move ack t
--#done attempts
  return attempts
end
--#end
do
--#slow
if replayed then return replayed end
local task, due = held()
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
--#move ack t
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
--#fast
end
