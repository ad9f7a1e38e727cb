-- Cancel a take that was sent ahead and no longer has callers: undo it if it ran, and make it do nothing if it
-- arrives later.
-- ARGV  6 the number of its call, which has the same slot
-- reply  nothing
--#include begin
if replayed then return end
local number = last and string.match(last, '^(%d+):') or ''
if number > ARGV[6] then return end
if number == ARGV[6] and #last > 24 then
  local task, due = find_held(unpack_struct('>I8', last, 18), string.format('%d', number % TAKES))
  if task then
--#include undo_take
  end
end
--#done ''
