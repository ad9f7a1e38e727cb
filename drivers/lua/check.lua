-- How a script begins that checks a tube. It belongs to no session: a tube that needs it may let nobody in.
--
-- KEYS[1]  the tube's meta hash
-- ARGV[1]  '1': mend what is wrong; '': only say so
-- ARGV[2]  the time in microseconds; '': the server's
-- ARGV[3…] as the verb says
local call, M, ARGV = redis.call, KEYS[1], ARGV
local now = tonumber(ARGV[2])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local meta = META
if not META.born then return redis.error_reply('TUBEGONE there is no such tube') end
local mends = ARGV[1] == '1'
if mends then call('HDEL', M, '') end
-- What is wrong: its kind, and what it is about. Answers whether to mend it.
local found = {}
local function note(kind, about)
  found[#found + 1], found[#found + 2] = kind, about
  return mends
end
