-- Mark the tube as damaged, because the server has refused a command in the middle of a script; or remove the mark.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 '1': mark it; '': it is repaired
if ARGV[1] == '' then
  redis.call('HDEL', KEYS[1], 'damaged')
elseif redis.call('HEXISTS', KEYS[1], 'born') == 1 then
  -- The next call processes due tasks, and finds the mark.
  redis.call('HSET', KEYS[1], 'damaged', '1', 'soonest', 0)
end
