-- Maintain a session that several connections share.
-- KEYS[1]  its hash
-- ARGV  1 'publish', 'again', 'join', 'tube', 'heartbeat', 'leave' or 'lose', 2 its lease in microseconds ('':
--       while callers live), 3 the time in microseconds ('': the server's), 4 the name of a tube in which it is open
--       ('': none), 5 microseconds that it outlives the last lost caller, 6 the caller's name
-- reply  {the number of callers, the names of its tubes}; nil if it has ended, or the server has lost it
local call = redis.call
local key, what = KEYS[1], ARGV[1]
local now = tonumber(ARGV[3])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
call('HDEL', key, '')
local ends = call('HGET', key, 'ends')
if ends and tonumber(ends) <= now then
  call('DEL', key)
  ends = false
end
local caller = 'caller:' .. ARGV[6]
if what ~= 'publish' and what ~= 'again' and not ends then return false end
if what == 'leave' or what == 'lose' then
  call('HDEL', key, caller)
elseif what ~= 'tube' then
  -- Each heartbeat writes it as well, because the server may have lost it.
  call('HSET', key, caller, 1)
end
-- Other callers are unknown until their next heartbeat. The entry '?' keeps the session until its lease ends.
if what == 'again' then call('HSET', key, 'caller:?', 1) end
if ARGV[4] ~= '' then call('HSET', key, 'tube:' .. ARGV[4], 1) end
local callers = 0
local all = call('HGETALL', key)
local result = { 0 }
for n = 1, #all, 2 do
  local kind, name = string.match(all[n], '^(%l+):(.*)')
  if kind == 'tube' then result[#result + 1] = name elseif kind == 'caller' then callers = callers + 1 end
end
result[1] = callers
if callers <= 0 and what == 'leave' then
  call('DEL', key)
elseif ARGV[2] == '' then
  call('HSET', key, 'ends', callers > 0 and 1e18 or now + ARGV[5])
else
  -- Another caller may have a longer lease.
  local longest = math.max(ARGV[2], call('HGET', key, 'lease') or 0)
  -- The end is further ahead than the longest lease only if the clock was set back.
  local lease = math.max(ARGV[2], ends and tonumber(ends) < 1e18 and math.min(ends - now, longest) or 0)
  call('HSET', key, 'ends', now + lease, 'lease', longest)
  call('PEXPIRE', key, math.ceil(lease / 1000) * 2 + 60000)
end
return result
