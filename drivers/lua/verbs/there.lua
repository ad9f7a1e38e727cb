-- Whether there is a tube.
-- KEYS[1]  its meta hash
-- answers  its driver; nil: there is none
return redis.call('HGET', KEYS[1], 'driver')
