-- Look at several tasks.
-- ARGV  6 at those in this state only ('': in any), 7… their ids, a bounded number
-- answers  {how many of them were looked at}, and what `shown` says of each one that is there
--#include begin
--#include flush
local found, size, n = { 0 }, 0, 7
while n <= #ARGV and size < BYTES do
  local task = find(ARGV[n])
  if task and (ARGV[6] == '' or task.state == ARGV[6]) then
    local facts = shown(task)
    found[#found + 1] = facts
    size = size + #facts
  end
  n = n + 1
end
found[1] = n - 7
return found
