-- Remove tasks in any state, or only in the given states.
-- ARGV  6 the states ('': any), 7… for each task its id, and its take or put, as in find_any.lua
-- reply  for each task '1' if it was removed, '0' if not
--#include begin
if replayed then return replayed end
local done = {}
call('HDEL', M, '')
for n = 7, #ARGV, 2 do
  local task = find_expected(ARGV[n], ARGV[n + 1])
--#if KEEPS
  local kept = not task and (ARGV[6] == '' or string.find(ARGV[6], '-', 1, true)) and encode_done(ARGV[n], ARGV[n + 1])
  if kept then forget_done({ pack('>I6', ARGV[n]) }) end
--#end
  if task and ARGV[6] ~= '' and not string.find(ARGV[6], task.state, 1, true) then task = nil end
--#if KEEPS
  done[#done + 1] = (task or kept) and '1' or '0'
--#else
  done[#done + 1] = task and '1' or '0'
--#end
  if task then
--#move delete
  end
end
local result = table.concat(done)
--#done result
return result
