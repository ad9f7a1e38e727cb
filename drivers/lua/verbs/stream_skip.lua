-- Record tasks of a stream that were not delivered because they had changed since the take: its acks skip them.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the stream, 2 its epoch, 3 milliseconds until the record expires, 4… for each task its id, '.', and the
--       number of the take; at most 1000
-- reply  nothing
local M = KEYS[1]
if redis.call('HGET', M .. ':stream:' .. ARGV[1], 'epoch') ~= ARGV[2] then
  return redis.error_reply('FENCED another reader continues this stream')
end
local skipped = M .. ':skipped:' .. ARGV[1]
redis.call('SADD', skipped, unpack(ARGV, 4))
redis.call('PEXPIRE', skipped, ARGV[3])
