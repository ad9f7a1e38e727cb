-- The end of a call that took `tasks`. `stuck`: there are more, but they were not found yet.
-- in: tasks, stuck
if #tasks == 0 then
--#include flush
  if stuck then return redis.error_reply('AGAIN there is more to do first') end  --#if TAKE_FOR
  return {}
end
local reply = shown_all(tasks, stuck)
local answer = reply[1]
--#done answer
return reply
