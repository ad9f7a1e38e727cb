-- The end of a call that took `tasks`. `stuck`: there are more, but they were not found yet.
-- in: tasks, stuck
if #tasks == 0 then
--#include flush
  if stuck then return redis.error_reply('AGAIN call again') end  --#if TAKE_FOR
  return {}
end
local reply = encode_tasks(tasks, stuck)
local result = reply[1]
--#done result
return reply
