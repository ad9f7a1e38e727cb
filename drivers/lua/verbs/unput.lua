-- Undo puts whose caller has gone before it heard of them, as far as nobody took the tasks yet.
-- ARGV  6… of each its id, and 'c' and the moment of its put
-- answers  nothing
--#include begin
call('HDEL', M, '')
for n = 6, #ARGV, 2 do
  local task = find_meant(ARGV[n], ARGV[n + 1])
  if task and not task.replaces and task.attempts == 0 and (task.state == 'r' or task.state == '~') then
    task.key_ttl = false
--#move unput
  end
end
--#include flush
