-- Remove a task in any state, or only in the given states.
-- ARGV  6, 7, 8 as in find_any.lua and return_task.lua, 9 the states ('': any)
-- reply  as for ack
--#include begin
--#if KEEPS
if replayed then return replayed end
local kept = encode_done(ARGV[6], ARGV[7] or '')
if kept then
  if ARGV[9] ~= '' and not string.find(ARGV[9], '-', 1, true) then return redis.error_reply('STATE -') end
  forget_done({ pack('>I6', ARGV[6]) })
--#done kept
  return kept
end
--#end
--#include find_any
if ARGV[9] ~= '' and not string.find(ARGV[9], task.state, 1, true) then
  return redis.error_reply('STATE ' .. task.state)
end
call('HDEL', M, '')
--#move delete
--#include return_task
