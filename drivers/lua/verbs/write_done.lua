-- Record that a write has put all its tasks.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the writer, 2 the number of the write, 3 milliseconds for which the record is kept ('': no record)
-- reply  1; 0: the write is unknown
local M, write = KEYS[1], KEYS[1] .. ':written:' .. ARGV[1]
local known = redis.call('HMGET', write, 'number', 'last')
if known[1] ~= ARGV[2] then return known[2] and tonumber(known[2]) >= tonumber(ARGV[2]) and 1 or 0 end
redis.call('ZREM', M .. ':sealed', ARGV[1])
if ARGV[3] == '' then
  redis.call('UNLINK', write)
  return 1
end
redis.call('HDEL', write, 'number', 'chunks')
redis.call('HSET', write, 'last', ARGV[2])
redis.call('PEXPIRE', write, ARGV[3])
return 1
