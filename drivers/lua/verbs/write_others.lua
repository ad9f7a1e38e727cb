-- List writes that were sealed a while ago, and are not done.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the minimum age in seconds
-- reply  for each write its writer, its number and its chunks
local M, found = KEYS[1], {}
local now = redis.call('TIME')[1]
local names = redis.call('ZRANGEBYSCORE', M .. ':sealed', '-inf', now - ARGV[1], 'LIMIT', 0, 10)
-- These writes were sealed in the future: the clock has been set back since then.
if #names == 0 then names = redis.call('ZRANGEBYSCORE', M .. ':sealed', '(' .. now, '+inf', 'LIMIT', 0, 10) end
for _, name in ipairs(names) do
  local record = redis.call('HMGET', M .. ':written:' .. name, 'number', 'chunks')
  if record[1] then
    found[#found + 1], found[#found + 2], found[#found + 3] = name, record[1], record[2]
  else
    redis.call('ZREM', M .. ':sealed', name)
  end
end
return found
