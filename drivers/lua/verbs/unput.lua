-- Undo puts whose caller has gone before it heard of them, as far as nobody took the tasks yet.
-- ARGV  6… their ids
-- answers  nothing
--#include begin
call('HDEL', M, '')
for n = 6, #ARGV do
  local task, due = find(ARGV[n])
  if task and not task.replaces and task.attempts == 0 and (task.state == 'r' or task.state == '~') then
    task.key_ttl = false
--#move unput
  end
end
--#include flush
