-- Undo takes whose caller left before it received the tasks.
-- ARGV  6… for each task its id and the number of the take
-- reply  nothing
--#include begin
if replayed then return end
local undone = false
for n = 6, #ARGV, 2 do
  local task, due = find_held(ARGV[n], ARGV[n + 1])
  if task then
    undone = true
--#include undo_take
  end
end
if undone then
--#done ''
  return
end
--#include flush
