-- Record how many tasks Spark runs at a time: executors know it, and the driver of a stream needs it.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the stream, 2 its epoch, 3 the number
-- reply  nothing
local stream = KEYS[1] .. ':stream:' .. ARGV[1]
if redis.call('HGET', stream, 'epoch') == ARGV[2] then redis.call('HSET', stream, 'slots', ARGV[3]) end
