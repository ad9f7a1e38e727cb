-- Push a marker, which wakes one waiting process.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'marker' or 'room'
local call = redis.call
if call('EXISTS', KEYS[1]) == 1 then
  local key = KEYS[1] .. ':' .. ARGV[1]
  call('ZADD', key, 0, 1)
  -- The marker expires with the tube.
  local left = call('PTTL', KEYS[1])
  if left > 0 then call('PEXPIRE', key, left) end
end
