-- Wake a waiting process because a due time has come, unless another call has processed it already.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'marker' or 'room', 2 the due time
-- reply  microseconds until the due time by the server's clock; 0 if it has passed
local soonest = tonumber(redis.call('HGET', KEYS[1], 'soonest') or nil)
if not soonest or soonest > tonumber(ARGV[2]) then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if soonest > now then return soonest - now end
redis.call('ZADD', KEYS[1] .. ':' .. ARGV[1], 0, 1)
return 0
