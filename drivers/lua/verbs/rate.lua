-- Count a call against a rate limit, with the generic cell rate algorithm (GCRA).
-- KEYS[1]  a hash whose field `filled` is the theoretical arrival time of the next call
-- ARGV  1 the emission interval in microseconds, 2 the tolerance for bursts in microseconds,
--       3 '1': count a call if it is allowed; '-1': give a counted call back
-- reply  microseconds until the call is allowed; 0: it was allowed and counted
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local filled = math.max(tonumber(call('HGET', KEYS[1], 'filled')) or 0, now) + ARGV[1] * ARGV[3]
local wait = ARGV[3] == '1' and filled - ARGV[2] - now or 0
if wait > 0 then return math.ceil(wait) end
call('HSET', KEYS[1], 'filled', string.format('%.0f', filled))
call('PEXPIRE', KEYS[1], math.max(math.ceil((filled - now) / 1000), 1))
return 0
