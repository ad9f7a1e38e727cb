-- Undo puts whose caller left before the reply arrived, except for tasks that were taken since.
-- ARGV  6… for each task its id, and 'c' and the moment of its put
-- reply  nothing
--#include begin
call('HDEL', M, '')
for n = 6, #ARGV, 2 do
  local task = find_expected(ARGV[n], ARGV[n + 1])
  if task and not task.replaces and task.attempts == 0 and (task.state == 'r' or task.state == '~') then
    task.key_ttl = false
--#move unput
  end
end
--#include flush
