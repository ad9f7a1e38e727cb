-- The start of each script that checks a tube. It needs no session, because a damaged tube may refuse to open one.
--
-- KEYS[1]  the tube's meta hash
-- ARGV[1]  '1': repair problems; '': only report them
-- ARGV[2]  the time in microseconds; '': the server's
-- ARGV[3…] the arguments of the check
-- in: nothing
-- out: call, now, meta, repairs, found, note
local call, M, ARGV = redis.call, KEYS[1], ARGV
local now = tonumber(ARGV[2])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local meta = META
if not META.born then return redis.error_reply('TUBEGONE there is no such tube') end
local repairs = ARGV[1] == '1'
if repairs then call('HDEL', M, '') end
-- Record a problem: its kind and its subject. Return true if the script should repair it.
local found = {}
local function note(kind, about)
  found[#found + 1], found[#found + 2] = kind, about
  return repairs
end
