-- Wake whoever waits, as a process thinks that something is due, unless somebody has looked since it was due.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'marker' or 'room', 2 the moment
-- answers  microseconds until then, if it has not come yet by this clock; 0
local soonest = tonumber(redis.call('HGET', KEYS[1], 'soonest') or nil)
if not soonest or soonest > tonumber(ARGV[2]) then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if soonest > now then return soonest - now end
redis.call('ZADD', KEYS[1] .. ':' .. ARGV[1], 0, 1)
return 0
