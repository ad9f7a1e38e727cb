-- Find the task with the id ARGV[6], in any state, whichever session holds it.
-- ARGV  7 'c' and the moment of its put, 't' and the number of a take of this session, or '' (any task with that id)
-- out: task
if replayed then return replayed end
local task = find_expected(ARGV[6], ARGV[7])
if not task then return redis.error_reply('NOTFOUND there is no such task') end
