-- Ack a held task: it is done, and is removed from the tube.
-- ARGV  6 its id, 7 the number of the take by which the caller holds it ('': any; 'c' and the moment of the put: any
--       take of that task), 8 '1': the caller knows the data, and the task has no key; '2': the task has a key; '3': as
--       '1', and the task may have a due time, 9 its lane as ':lanes' stores it, if the caller knows that the task has
--       no key
-- reply  the task as `encode_task` encodes it; 1 if ARGV 7 is the number of a take and ARGV 8 is '1' or '3', unless a
--        listener is registered
--#include begin
local take = tonumber(ARGV[7]) or -1
if take < 0 or (ARGV[8] ~= '1' and ARGV[8] ~= '3') or listening then
--#slow
  if replayed then return tonumber(replayed) or replayed end
  local task = find_held(ARGV[6], ARGV[7])
  if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
--#move ack t
--#include return_task
--#fast
end
if replayed then return 1 end
local score = call('ZSCORE', M .. ':taken', ARGV[6])
if not score or score + 0 ~= ARGV[1] * TAKES + take then return redis.error_reply('NOTTAKEN this session does not have it') end
--#include ack_known
--#done '1'
return 1
