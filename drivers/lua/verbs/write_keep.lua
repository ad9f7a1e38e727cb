-- Extend the expiry of uploaded chunks, because their write is about to be sealed.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 milliseconds, 2… chunks; at most 1000
-- reply  the number of missing chunks
local missing = 0
for n = 2, #ARGV do
  if redis.call('PEXPIRE', KEYS[1] .. ':staged:' .. ARGV[n], ARGV[1]) == 0 then missing = missing + 1 end
end
return missing
