-- A write has put all.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 who writes, 2 the number of the write, 3 for how many milliseconds it is known that it was done ('': not at all)
-- answers  nothing
local M, W = KEYS[1], KEYS[1] .. ':written:' .. ARGV[1]
if redis.call('HGET', W, 'number') ~= ARGV[2] then return end
redis.call('ZREM', M .. ':sealed', ARGV[1])
if ARGV[3] == '' then
  redis.call('DEL', W)
  return
end
redis.call('HDEL', W, 'number', 'chunks')
redis.call('HSET', W, 'last', ARGV[2])
redis.call('PEXPIRE', W, ARGV[3])
