-- Bury a task, in any state.
-- ARGV  6, 7, 8 as in any_task.lua and reply.lua, 9 the reason ('': none), 10 the new priority ('': unchanged)
-- reply  as for ack
--#include begin
--#include any_task
--#if PRI
local pri = tonumber(ARGV[10] or '')
-- If the rank fails for this priority, it must fail before the first write.
if pri then place({ id = task.id, pri = pri, created = task.created }) end  --#if RANK
--#end
local function change(task)
  if pri then task.pri = pri > 0 and pri end  --#if PRI
end
call('HDEL', M, '')
if task.state ~= '!' then
  local due
  task.reason = ARGV[9] ~= '' and ARGV[9]
  if task.state == 't' then note_past(task, 1) end
--#move bury
end
--#include outlived
--#include reply
