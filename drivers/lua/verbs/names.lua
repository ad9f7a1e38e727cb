-- List the names of the tubes of a prefix.
-- KEYS[1]  their set
-- ARGV  1 'add' or 'remove', 2 a name; 1 'some', 2 where to go on ('0': the beginning)
-- answers  {where to go on ('0': nowhere, that was all), some of them}: each that is there all the time, perhaps twice
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
