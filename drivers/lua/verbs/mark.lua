-- Leave a marker: whoever waits for it looks again.
-- KEYS[1]  the marker
redis.call('ZADD', KEYS[1], 0, 1)
