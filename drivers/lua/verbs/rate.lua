-- Count a call against a rate limit, by the generic cell rate algorithm.
-- KEYS[1]  a hash: until when calls of before fill an even pace (`filled`)
-- ARGV  1 microseconds from one call to the next at that pace, 2 how many microseconds calls may be ahead of it,
--       3 '1': count one, if it may go; '-1': take one back
-- answers  after how many microseconds the call may go; 0: now, and it was counted
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local filled = math.max(tonumber(call('HGET', KEYS[1], 'filled')) or 0, now) + ARGV[1] * ARGV[3]
local wait = ARGV[3] == '1' and filled - ARGV[2] - now or 0
if wait > 0 then return math.ceil(wait) end
call('HSET', KEYS[1], 'filled', string.format('%.0f', filled))
call('PEXPIRE', KEYS[1], math.max(math.ceil((filled - now) / 1000), 1))
return 0
