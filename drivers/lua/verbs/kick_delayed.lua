-- Make delayed tasks ready before their time; the earliest due time comes first.
-- ARGV  6 the maximum per call, 7, 8 as for kick, 9 the number of entries of ':due' to skip
-- reply  the number of kicked tasks, and the number of entries to skip in the next call (-1: the end), in one string
--#include begin
if replayed then return replayed end
call('HDEL', M, '')
local kicked, passed = 0, tonumber(ARGV[9])
local ids = call('ZRANGE', M .. ':due', passed, passed + SOME - 1)
for n = 1, #ids do
  if kicked >= tonumber(ARGV[6]) then break end
  local task, due = find(unpack_struct('>I6', ids[n]))
  if task and task.state == '~' then
    respawn(task, ARGV[7], ARGV[8])
--#move kick ~
    kicked = kicked + 1
  else
    passed = passed + 1
  end
end
if #ids < SOME then passed = -1 end
local answer = string.format('%d %d', kicked, passed)
--#done answer
return answer
