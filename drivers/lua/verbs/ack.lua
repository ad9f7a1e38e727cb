-- Ack a held task: it is done, and leaves the tube.
-- ARGV  6 its id, 7 the number of the take by which the caller has it ('': whichever; 'c' and the moment of its put:
--       whichever of that task), 8 '1': the caller knows its data, and that it has no key; '2': that it has one; '3': as
--       '1', and that it may be due, 9 its lane as ':lanes' has it, if the caller knows that it has no key
-- answers  what `shown` says of the task; 1 alone if the caller knows it by its take
--#include begin
local take = tonumber(ARGV[7]) or -1
if take < 0 or (ARGV[8] ~= '1' and ARGV[8] ~= '3') or listening then
--#slow
  if replayed then return tonumber(replayed) or replayed end
  local task = held_one(ARGV[6], ARGV[7])
  if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
--#move ack t
--#include reply
--#fast
end
if replayed then return 1 end
local score = call('ZSCORE', M .. ':taken', ARGV[6])
if not score or score + 0 ~= ARGV[1] * TAKES + take then return redis.error_reply('NOTTAKEN this session does not have it') end
--#include ack_known
--#done '1'
return 1
