-- Tasks of a stream were not delivered, since they were not as it had taken them: its acks do not count for them.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the stream, 2 for how many milliseconds that is known, 3… their ids; 1000 at most
-- answers  nothing
local skipped = KEYS[1] .. ':skipped:' .. ARGV[1]
redis.call('SADD', skipped, unpack(ARGV, 3))
redis.call('PEXPIRE', skipped, ARGV[2])
