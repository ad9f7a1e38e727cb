-- Look at buried tasks.
-- ARGV  6… their ids, a bounded number
-- answers  what `shown` says of each one that is buried
--#include begin
--#include flush
local found = {}
for n = 6, #ARGV do
  local task = find(ARGV[n])
  if task and task.state == '!' then found[#found + 1] = shown(task) end
end
return found
