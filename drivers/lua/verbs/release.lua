-- Give a held task back.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready ('': at once; 'backoff': as the tube's backoff says)
-- answers  as for ack
--#include begin
if replayed then return replayed end
local task = held()
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
local due
if is_last(task) then
--#slow
  task.reason = 'max_attempts: release'
--#move release_last t
--#fast
else
--#if TIMED
--#if BACKOFF
  local span = ARGV[9] == 'backoff' and rest_of(task) or tonumber(ARGV[9]) or 0
--#else
  local span = tonumber(ARGV[9]) or 0
--#end
  if span > 0 then
    prolong(task, span)
    due = now + span
--#move release_delayed t
  else
--#move release t
  end
--#else
--#move release t
--#end
end
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
