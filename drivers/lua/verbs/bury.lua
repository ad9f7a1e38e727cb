-- Bury a task, in any state.
-- ARGV  6, 7, 8 as in find_any.lua and return_task.lua, 9 the reason ('': none), 10 the new priority ('': unchanged)
-- reply  as for ack
--#include begin
--#include find_any
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
  if task.state == 't' then count_event(task, 1) end
--#move bury
end
--#include expire
--#include return_task
