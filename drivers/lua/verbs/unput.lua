-- Undo a put whose caller has gone before it heard of it, if nobody took the task yet.
-- ARGV  6 its id
-- answers  nothing
--#include begin
local task = find(ARGV[6])
if task and task.attempts == 0 and (task.state == 'r' or task.state == '~') then
  call('HDEL', M, '')
  local due
  task.key_ttl = false
--#move unput
end
--#include flush
