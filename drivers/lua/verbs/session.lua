-- A session that several connections share.
-- KEYS[1]  its hash
-- ARGV  1 'publish', 'join', 'tube', 'beat', 'leave' or 'lose', 2 its lease in microseconds ('': while callers live),
--       3 the time in microseconds ('': the server's), 4 the name of a tube in which it is open ('': none),
--       5 for how many microseconds it outlives the last caller that was lost, 6 the caller's name
-- answers  {how many callers there are, the number of this one, the names of its tubes}; nil if it has ended
local call = redis.call
local S, what = KEYS[1], ARGV[1]
local now = tonumber(ARGV[3])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
call('HDEL', S, '')
local ends = call('HGET', S, 'ends')
if ends and tonumber(ends) <= now then
  call('DEL', S)
  ends = false
end
local caller = 'caller:' .. ARGV[6]
if what == 'publish' and not ends then
  call('HSET', S, caller, 0, 'joined', 0)
elseif not ends then
  return false
end
local number = tonumber(call('HGET', S, caller) or nil)
if what == 'join' and not number then
  number = call('HINCRBY', S, 'joined', 1)
  call('HSET', S, caller, number)
elseif what == 'leave' or what == 'lose' then
  call('HDEL', S, caller)
end
if ARGV[4] ~= '' then call('HSET', S, 'tube:' .. ARGV[4], 1) end
local callers = 0
local all = call('HGETALL', S)
local answer = { 0, number or 0 }
for n = 1, #all, 2 do
  local kind, name = string.match(all[n], '^(%l+):(.*)')
  if kind == 'tube' then answer[#answer + 1] = name elseif kind == 'caller' then callers = callers + 1 end
end
answer[1] = callers
if callers <= 0 and what == 'leave' then
  call('DEL', S)
elseif ARGV[2] == '' then
  call('HSET', S, 'ends', callers > 0 and 1e18 or now + ARGV[5])
else
  -- Another caller may have a longer lease.
  local lease = math.max(ARGV[2], ends and tonumber(ends) < 1e18 and ends - now or 0)
  call('HSET', S, 'ends', now + lease)
  call('PEXPIRE', S, math.ceil(lease / 1000) * 2 + 60000)
end
return answer
