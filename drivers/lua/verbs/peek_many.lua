-- Look at several tasks.
-- ARGV  6 the required state ('': any), 7 a filter, 8 a key ('': none), 9… their ids, a bounded number. With a key, the
--       script looks only at the task that has it
-- reply  {the number of ids that were read}, and each task that exists and passes the filter, as `filter_of` says
--#include begin
--#include flush
if ARGV[8] ~= '' then ARGV[9] = call('HGET', M .. ':keys', ARGV[8]) or nil end
local found, size, n, accept, weight = { 0 }, 0, 9, filter_of(ARGV[7])
while n <= #ARGV and size < BYTES do
  local task = find(ARGV[n])
  if task and (ARGV[6] == '' or task.state == ARGV[6]) then
    found[#found + 1] = accept(task)
  end
  size = size + (task and #task.value * weight or 0)
  n = n + 1
end
found[1] = n - 9
return found
