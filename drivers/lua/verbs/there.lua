-- Find out whether there is a tube.
-- KEYS[1]  its meta hash
-- answers  its driver and its options; nil: there is none
return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HMGET', KEYS[1], 'driver', 'options')
