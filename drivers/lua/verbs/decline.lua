-- Return a held task to the tube as if it had not been taken: the attempt does not count, and a delay does not extend
-- its life.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready (0: at once)
-- reply  as for ack
--#include begin
--#include find_held
local due
return_token(task)  --#if RATED
task.attempts = task.attempts - 1
--#if TIMED
local span = tonumber(ARGV[9])
if span > 0 then
  due = now + span
--#move release_delayed t
else
--#move release t
end
--#else
--#move release t
--#end
--#include expire
--#include return_task
