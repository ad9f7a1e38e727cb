-- Remove the tasks of one state, some per call.
-- ARGV  6 the state, 7 the cursor; 0: the beginning
-- reply  the next cursor; 0: the end
--#include begin
if replayed then return replayed end
call('HDEL', M, '')
--#if KEEPS
if ARGV[6] == '-' then
  call('UNLINK', M .. ':done', M .. ':ended')
--#done '0'
  return '0'
end
--#end
local page = call('HSCAN', M .. ':tasks', ARGV[7], 'COUNT', 50)
for n = 1, #page[2], 2 do
  local task = find(page[2][n])
  if task and task.state == ARGV[6] then
--#move delete
  end
end
local cursor = page[1]
--#done cursor
return cursor
