-- Give up a take that was sent ahead, as its callers have gone: it is undone if it was done, and does nothing if it comes later.
-- ARGV  6 the number of its call, which has the same slot
-- answers  nothing
--#include begin
if replayed then return end
local number = last and string.match(last, '^(%d+):') or ''
if number > ARGV[6] then return end
if number == ARGV[6] and #last > 24 then
  local task, due = held_one(unpack_struct('>I8', last, 18), string.format('%d', number % TAKES))
  if task then
    task.attempts, task.undone = task.attempts - 1, true
--#move untake t
  end
end
--#done ''
