-- Leave a marker: whoever waits for it looks again.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'marker' or 'room'
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('ZADD', KEYS[1] .. ':' .. ARGV[1], 0, 1) end
