-- Change a task in any state.
-- ARGV  6, 7 as in find_any.lua, 9 '1': set its data to ARGV[10], 11 its priority, 12 microseconds until it is ready,
--       13 microseconds that it lives from now on ('': unchanged)
-- reply  the task as `encode_task` encodes it
--#include begin
--#include find_any
if (ARGV[12] ~= '' and task.state ~= 'r' and task.state ~= '~') or (ARGV[13] ~= '' and task.state == 't') then
  return redis.error_reply('STATE ' .. task.state)
end
-- If the rank fails for this priority, it must fail before the first write.
if ARGV[11] ~= '' then place({ id = task.id, pri = tonumber(ARGV[11]), created = task.created }) end  --#if RANK
call('HDEL', M, '')
local function change(task)
  if ARGV[9] ~= '' then task.value = sub(task.value, 1, task.body - 1) .. ARGV[10] end
  if ARGV[11] ~= '' then task.pri = ARGV[11] ~= '0' and tonumber(ARGV[11]) end  --#if PRI
  if ARGV[13] ~= '' then set_ttl(task, ARGV[13]) end  --#if TIMED
  if task.state == 't' then write(task) end
end
local due = task.due
--#if TIMED
if ARGV[12] ~= '' and tonumber(ARGV[12]) > 0 then
  due = now + ARGV[12]
--#move update_delayed
elseif ARGV[12] ~= '' and task.state == '~' then
--#move update_ready
else
--#move update
end
--#else
--#move update
--#end
--#include expire
local reply = encode_task(task)
--#done reply
return reply
