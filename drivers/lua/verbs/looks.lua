-- Look at several tasks.
-- ARGV  6 the required state ('': any), 7… their ids, a bounded number
-- reply  {the number of ids that were read}, and each task that exists, as `shown` encodes it
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
