-- Change a task, in whatever state.
-- ARGV  6, 7 as any_task.lua says, 9 '1': it gets the data of 10, 11 its pri, 12 microseconds until it is ready, 13 microseconds that it
--       lives from now on ('': as it is)
-- answers  what `shown` says of the task
--#include begin
--#include any_task
if (ARGV[12] ~= '' and task.state ~= 'r' and task.state ~= '~') or (ARGV[13] ~= '' and task.state == 't') then
  return redis.error_reply('STATE ' .. task.state)
end
--#if RANK
-- An order that fails for this priority fails before anything is written.
if ARGV[11] ~= '' then place({ id = task.id, pri = tonumber(ARGV[11]), created = task.created }) end
--#end
call('HDEL', M, '')
local function change(task)
  if ARGV[9] ~= '' then task.value = sub(task.value, 1, task.body - 1) .. ARGV[10] end
--#if PRI
  if ARGV[11] ~= '' then task.pri = ARGV[11] ~= '0' and tonumber(ARGV[11]) end
--#end
--#if TIMED
  if ARGV[13] ~= '' then live(task, ARGV[13]) end
--#end
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
--#include outlived
local reply = shown(task)
--#done reply
return reply
