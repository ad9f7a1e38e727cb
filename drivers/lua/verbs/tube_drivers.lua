-- Find out which tubes exist.
-- KEYS[1]  the meta hash of the first tube
-- ARGV  the meta hashes of all tubes, a bounded number
-- reply  for each tube its driver; '': the key is not a tube; nil: the key does not exist
local call = redis.call
local there = {}
for n = 1, #ARGV do
  local kind = call('TYPE', ARGV[n]).ok
  there[n] = kind ~= 'none' and (kind == 'hash' and call('HGET', ARGV[n], 'driver') or '')
end
return there
