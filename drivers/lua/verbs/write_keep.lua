-- Keep what was brought for longer: its write is about to be sealed.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 for how many milliseconds, 2… chunks; 1000 at most
-- answers  how many of them are gone
local gone = 0
for n = 2, #ARGV do
  if redis.call('PEXPIRE', KEYS[1] .. ':staged:' .. ARGV[n], ARGV[1]) == 0 then gone = gone + 1 end
end
return gone
