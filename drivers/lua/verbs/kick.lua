-- Make buried tasks ready, in their order.
-- ARGV  6 the maximum per call, bounded, 7, 8 their new attempts and time to live, as `respawn` takes them
-- reply  the number of kicked tasks
--#include begin
if replayed then return tonumber(replayed) end
call('HDEL', M, '')
local places = call('ZRANGEBYLEX', M .. ':buried', '-', '+', 'LIMIT', 0, ARGV[6])
for _, at in ipairs(places) do
  local task, due = find(id_at(at))
  respawn(task, ARGV[7], ARGV[8])
--#move kick !
end
--#done #places
return #places
