-- Make one buried task ready; another one stays as it is.
-- ARGV  6 its id, 7 'c' and the moment of its put ('': whichever has that id), 8 '1': the caller knows its data, 9, 10 what it gets, as `respawn` says
-- answers  as for ack
--#include begin
if replayed then return replayed end
local task, due = find_meant(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTFOUND there is no such task') end
call('HDEL', M, '')
if task.state == '!' then
  respawn(task, ARGV[9], ARGV[10])
--#move kick !
end
--#include outlived
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
