-- Find the task that the caller holds. ARGV 6 and 7: as for ack.
-- out: task
if replayed then return replayed end
local task = find_held(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTTAKEN this session does not have it') end
