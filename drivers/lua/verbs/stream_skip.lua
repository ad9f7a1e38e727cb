-- Note that tasks of a stream were not delivered, since they were not as it had taken them: its acks leave them out.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the stream, 2 its epoch, 3 for how many milliseconds that is known, 4… of each its id, '.', and the number of
--       the take; 1000 at most
-- answers  nothing
local M = KEYS[1]
if redis.call('HGET', M .. ':stream:' .. ARGV[1], 'epoch') ~= ARGV[2] then
  return redis.error_reply('FENCED another reader continues this stream')
end
local skipped = M .. ':skipped:' .. ARGV[1]
redis.call('SADD', skipped, unpack(ARGV, 4))
redis.call('PEXPIRE', skipped, ARGV[3])
