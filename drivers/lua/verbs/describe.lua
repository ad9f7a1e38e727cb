-- Find out if a tube exists.
-- KEYS[1]  its meta hash
-- reply  its driver and its options; nil: it does not exist
return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HMGET', KEYS[1], 'driver', 'options')
