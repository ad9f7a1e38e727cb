-- How many tasks there are, and which ids they may have.
-- KEYS[1]  the tube's meta hash
-- answers  {how many, the lowest id that may be there, the next id}; nil: there is no such tube
local meta = redis.call('HMGET', KEYS[1], 'oldest', 'next')
return meta[2] and { redis.call('HLEN', KEYS[1] .. ':tasks'), tonumber(meta[1] or 0), tonumber(meta[2]) }
