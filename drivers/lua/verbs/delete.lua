-- Remove a task, in whatever state.
-- ARGV  6 its id, 7 'c' and the moment of its put ('': whichever has that id), 8 '1': the caller knows its data
-- answers  as for ack
--#include begin
if replayed then return replayed end
local task = find_meant(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTFOUND there is no such task') end
call('HDEL', M, '')
--#move delete
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
