-- Release a held task.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready ('': at once; 'backoff': as the tube's backoff says),
--       10 why it is buried, if that was its last attempt ('': nobody says), 11 its priority ('': as it is),
--       12 its data (absent: as it is)
-- answers  as for ack
--#include begin
--#include held_task
local due, delay, reason = nil, ARGV[9], ARGV[10]
--#if PRI
local pri = tonumber(ARGV[11] or '')
if pri then
--#if RANK
  -- An order that fails for this priority fails before anything is written.
  place({ id = task.id, pri = pri, created = task.created })
--#end
  task.pri = pri > 0 and pri
end
--#end
if ARGV[12] then task.value = sub(task.value, 1, task.body - 1) .. ARGV[12] end
--#include release_one
--#include outlived
--#include reply
