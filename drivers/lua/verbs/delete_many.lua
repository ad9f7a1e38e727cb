-- Remove tasks, in whatever state.
-- ARGV  6… of each its id, and which task that is, as any_task.lua says
-- answers  for each '1' if it was there, '0' if it was not
--#include begin
if replayed then return replayed end
local done = {}
call('HDEL', M, '')
for n = 6, #ARGV, 2 do
  local task = find_meant(ARGV[n], ARGV[n + 1])
  done[#done + 1] = task and '1' or '0'
  if task then
--#move delete
  end
end
local answer = table.concat(done)
--#done answer
return answer
