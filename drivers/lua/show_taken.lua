-- How a call ends that has taken `tasks`; `stuck`: there are more, which were not found yet.
if #tasks == 0 then
--#include flush
--#if TAKE_FOR
  if stuck then return redis.error_reply('AGAIN there is more to do first') end
--#end
  return {}
end
local reply = shown_all(tasks, stuck)
local answer = reply[1]
--#done answer
return reply
