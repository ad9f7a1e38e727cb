-- The names of the tubes of a prefix.
-- KEYS[1]  their set
-- ARGV  1 'add', 'remove' or 'all', 2 a name
-- answers  all of them
if ARGV[1] == 'add' then
  redis.call('SREM', KEYS[1], '')
  redis.call('SADD', KEYS[1], ARGV[2])
elseif ARGV[1] == 'remove' then
  redis.call('SREM', KEYS[1], ARGV[2])
else
  return redis.call('SMEMBERS', KEYS[1])
end
