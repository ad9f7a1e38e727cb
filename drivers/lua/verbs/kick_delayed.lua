-- Make delayed tasks ready before their time, those first whose delays end first.
-- ARGV  6 how many at most in this call, 7, 8 what they get, as `respawn` says, 9 how many entries of ':due' to pass over
-- answers  how many, and how many entries to pass over in the next call (-1: that was all), in one string
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
