-- Remove tasks that are as a caller has seen them.
-- ARGV  6… of each its id, and which task that is, as any_task.lua says; its state, and the SHA-1 of its data
-- answers  for each '1' if it was, '0' if it was not
--#include begin
if replayed then return replayed end
local done = {}
call('HDEL', M, '')
for n = 6, #ARGV, 4 do
  local task = find_meant(ARGV[n], ARGV[n + 1])
  local same = task and task.state == ARGV[n + 2] and redis.sha1hex(sub(task.value, task.body)) == ARGV[n + 3]
  done[#done + 1] = same and '1' or '0'
  if same then
--#move delete
  end
end
local answer = table.concat(done)
--#done answer
return answer
