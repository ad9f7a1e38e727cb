-- Look at a held task.
-- ARGV  6, 7, 8 as for ack
-- answers  as for ack
--#include begin
--#include flush
local task = held_one(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
return shown_held(task, ARGV[8] ~= '')
