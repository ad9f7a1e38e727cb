-- Remove the uploaded chunks of a write, except for chunks whose expiry was extended: their write may be sealed.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the write, 2 milliseconds for which it is remembered that the write was aborted ('': it was not), 3 the usual
--       expiry of a chunk in milliseconds ('': remove all chunks, because all puts of the write are done)
-- reply  the number of chunks that are left to remove
local M = KEYS[1]
local chunks = M .. ':chunks:' .. ARGV[1]
if ARGV[2] ~= '' then
  redis.call('SADD', chunks, '!')
  redis.call('PEXPIRE', chunks, ARGV[2])
end
for _, chunk in ipairs(redis.call('SRANDMEMBER', chunks, 100)) do
  if chunk ~= '!' then
    local list = M .. ':staged:' .. chunk
    if ARGV[3] == '' or redis.call('PTTL', list) <= tonumber(ARGV[3]) then redis.call('UNLINK', list) end
    redis.call('SREM', chunks, chunk)
  end
end
return redis.call('SCARD', chunks) - redis.call('SISMEMBER', chunks, '!')
