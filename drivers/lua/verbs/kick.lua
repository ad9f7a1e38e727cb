-- Make buried tasks ready, in their order.
-- ARGV  6 how many at most in this call, a bounded number, 7, 8 what they get, as `respawn` says
-- answers  how many
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
