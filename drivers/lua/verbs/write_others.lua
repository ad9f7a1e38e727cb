-- List writes that were sealed a while ago, and are not done.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 how many seconds ago
-- answers  of each who writes, its number and what to put
local M, found = KEYS[1], {}
local now = redis.call('TIME')[1]
local names = redis.call('ZRANGEBYSCORE', M .. ':sealed', '-inf', now - ARGV[1], 'LIMIT', 0, 10)
-- Sealed in the future: the clock was set back since.
if #names == 0 then names = redis.call('ZRANGEBYSCORE', M .. ':sealed', '(' .. now, '+inf', 'LIMIT', 0, 10) end
for _, name in ipairs(names) do
  local known = redis.call('HMGET', M .. ':written:' .. name, 'number', 'chunks')
  if known[1] then
    found[#found + 1], found[#found + 2], found[#found + 3] = name, known[1], known[2]
  else
    redis.call('ZREM', M .. ':sealed', name)
  end
end
return found
