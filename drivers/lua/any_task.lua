-- The `task` that the caller means, whoever holds it: ARGV  6 its id, 7 'c' and the moment of its put, 't' and the number
-- of a take of this session, or '': whichever has that id.
if replayed then return replayed end
local task = find_meant(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTFOUND there is no such task') end
