-- Upload words for a put of many tasks, which follows after the last part. The list expires some time after that.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the name of the list, 2 the number of earlier parts ('': remove the list), 3 milliseconds until it expires,
--       4 the next part: words in one string
-- reply  nothing
local list = KEYS[1] .. ':staged:' .. ARGV[1]
if ARGV[2] == '' then
  redis.call('UNLINK', list)
  return
end
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('TUBEGONE there is no such tube') end
local there = redis.call('LLEN', list)
-- Otherwise this part was uploaded before, and only the reply was lost.
if there <= tonumber(ARGV[2]) then
  if there < tonumber(ARGV[2]) then return redis.error_reply('STAGEGONE the tasks uploaded before are gone') end
  redis.call('RPUSH', list, ARGV[4])
end
redis.call('PEXPIRE', list, ARGV[3])
