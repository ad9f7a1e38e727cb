-- Bring words for a put of many tasks, which comes when all are there. They are gone some time after the last ones.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the name of their list, 2 how many parts are there already ('': remove it), 3 for how many milliseconds they stay,
--       4 words, in one string: the next part
-- answers  nothing
local list = KEYS[1] .. ':staged:' .. ARGV[1]
if ARGV[2] == '' then
  redis.call('UNLINK', list)
  return
end
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('TUBEGONE there is no such tube') end
local there = redis.call('LLEN', list)
-- Else this one came before, and only its answer was lost.
if there <= tonumber(ARGV[2]) then
  if there < tonumber(ARGV[2]) then return redis.error_reply('STAGEGONE the tasks uploaded before are gone') end
  redis.call('RPUSH', list, ARGV[4])
end
redis.call('PEXPIRE', list, ARGV[3])
