-- Find out which of some tubes are there.
-- KEYS[1]  the meta hash of the first of them
-- ARGV  the meta hashes of all, a bounded number
-- answers  for each its driver, '' where something stands that is no tube; nil: nothing does
local call = redis.call
local there = {}
for n = 1, #ARGV do
  local kind = call('TYPE', ARGV[n]).ok
  there[n] = kind ~= 'none' and (kind == 'hash' and call('HGET', ARGV[n], 'driver') or '')
end
return there
