-- Remove what was brought for a write, but for what stays for longer than it would by itself: that may be sealed.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the write, 2 if it is given up for how many milliseconds that is known, else '', 3 how many milliseconds that is;
--       '': all is put that is ever going to be
-- answers  how many chunks are left to remove
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
