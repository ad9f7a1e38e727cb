-- Add, remove or list names of the tubes of a prefix.
-- KEYS[1]  the set of names
-- ARGV  1 'add' or 'remove', 2 a name; or 1 'some', 2 the cursor ('0': the beginning)
-- reply  of 'some' {the next cursor ('0': the end), names}: each tube that exists during the whole scan, some of them
--        twice
if ARGV[1] == 'add' then
--#slow
  redis.call('SREM', KEYS[1], '')
  redis.call('SADD', KEYS[1], ARGV[2])
--#fast
elseif ARGV[1] == 'remove' then
  redis.call('SREM', KEYS[1], ARGV[2])
else
  return redis.call('SSCAN', KEYS[1], ARGV[2], 'COUNT', 1000)
end
