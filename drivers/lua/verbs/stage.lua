-- Bring words for a put of many tasks, which comes when all are there. They are gone some time after the last ones.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the name of their list, 2 how many are there already ('': remove it), 3 for how many milliseconds they stay, 4… words
-- answers  nothing
local list = KEYS[1] .. ':staged:' .. ARGV[1]
if ARGV[2] == '' then
  redis.call('UNLINK', list)
  return
end
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('TUBEGONE there is no such tube') end
local there = redis.call('LLEN', list)
-- Else these came before, and only their answer was lost.
if there <= tonumber(ARGV[2]) then
  if there < tonumber(ARGV[2]) then return redis.error_reply('STAGEGONE what came before is gone') end
  for first = 4, #ARGV, 1000 do redis.call('RPUSH', list, unpack(ARGV, first, math.min(first + 999, #ARGV))) end
end
redis.call('PEXPIRE', list, ARGV[3])
