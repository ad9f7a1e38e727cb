-- Note how many tasks Spark runs at a time: only executors know it, and only the driver of a stream asks.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the stream, 2 its epoch, 3 how many
-- answers  nothing
local S = KEYS[1] .. ':stream:' .. ARGV[1]
if redis.call('HGET', S, 'epoch') == ARGV[2] then redis.call('HSET', S, 'slots', ARGV[3]) end
