-- Undo a take whose taker has gone before it got the task.
-- ARGV  6, 7 as for ack
-- answers  nothing
--#include begin
if replayed then return end
local task = held()
if task then
  task.attempts, task.undone = task.attempts - 1, true
  local due
--#move untake t
--#done ''
  return
end
--#include flush
