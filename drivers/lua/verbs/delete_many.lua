-- Remove tasks, in whatever state.
-- ARGV  6… their ids
-- answers  for each '1' if it was there, '0' if it was not
--#include begin
if replayed then return replayed end
local done = {}
call('HDEL', M, '')
for n = 6, #ARGV do
  local task, due = find(ARGV[n])
  done[#done + 1] = task and '1' or '0'
  if task then
--#move delete
  end
end
local answer = table.concat(done)
--#done answer
return answer
