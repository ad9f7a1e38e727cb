-- Remove what was brought for a write, but for what is sealed: that is going to be put, and does not expire.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the write, 2 if it is given up for how many milliseconds that is known, else ''
-- answers  how many chunks are left to remove
local M = KEYS[1]
local chunks = M .. ':chunks:' .. ARGV[1]
if ARGV[2] ~= '' then
  redis.call('SADD', chunks, '!')
  redis.call('PEXPIRE', chunks, ARGV[2])
end
for _, chunk in ipairs(redis.call('SRANDMEMBER', chunks, 100)) do
  if chunk ~= '!' then
    if redis.call('PTTL', M .. ':staged:' .. chunk) ~= -1 then redis.call('UNLINK', M .. ':staged:' .. chunk) end
    redis.call('SREM', chunks, chunk)
  end
end
return redis.call('SCARD', chunks) - redis.call('SISMEMBER', chunks, '!')
