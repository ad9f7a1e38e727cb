-- Release a held task.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready ('': at once; 'backoff': by the backoff of the tube),
--       10 the reason if its last attempt buries it ('': none), 11 its priority ('': unchanged),
--       12 its data (absent: unchanged)
-- reply  as for ack
--#include begin
--#include find_held
local due, delay, reason = nil, ARGV[9], ARGV[10]
--#if PRI
local pri = tonumber(ARGV[11] or '')
if pri then
  -- If the rank fails for this priority, it must fail before the first write.
  place({ id = task.id, pri = pri, created = task.created })  --#if RANK
  task.pri = pri > 0 and pri
end
--#end
if ARGV[12] then task.value = sub(task.value, 1, task.body - 1) .. ARGV[12] end
--#include release_one
--#include expire
--#include return_task
