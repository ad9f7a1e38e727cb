-- Look at a task.
-- ARGV  6 its id, 8 '1': the caller knows its data
-- answers  as for ack
--#include begin
--#include flush
local task = find(ARGV[6])
if not task then return redis.error_reply('NOTFOUND there is no such task') end
return shown(task, ARGV[8] ~= '')
