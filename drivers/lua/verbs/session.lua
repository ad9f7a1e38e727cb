-- A session that several connections share.
-- KEYS[1]  its hash
-- ARGV  1 'publish', 'join', 'tube', 'beat', 'leave' or 'lose', 2 its lease in microseconds ('': while callers live),
--       3 the time in microseconds ('': the server's), 4 the name of a tube in which it is open ('': none),
--       5 for how many microseconds it outlives the last caller that was lost
-- answers  {how many callers there are, how many there were in all, the names of its tubes}; nil if it has ended
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
if what == 'publish' and not ends then
  call('HSET', S, 'callers', 1, 'joined', 0)
elseif not ends then
  return false
end
if what == 'join' then
  call('HINCRBY', S, 'callers', 1)
  call('HINCRBY', S, 'joined', 1)
elseif what == 'leave' or what == 'lose' then
  call('HINCRBY', S, 'callers', -1)
end
if ARGV[4] ~= '' then call('HSET', S, 'tube:' .. ARGV[4], 1) end
local callers = tonumber(call('HGET', S, 'callers'))
local all = call('HGETALL', S)
local answer = { callers, tonumber(call('HGET', S, 'joined')) }
for n = 1, #all, 2 do
  local tube = string.match(all[n], '^tube:(.*)')
  if tube then answer[#answer + 1] = tube end
end
if callers <= 0 and what == 'leave' then
  call('DEL', S)
elseif ARGV[2] == '' then
  call('HSET', S, 'ends', callers > 0 and 1e18 or now + ARGV[5])
else
  call('HSET', S, 'ends', now + ARGV[2])
  call('PEXPIRE', S, math.ceil(ARGV[2] / 1000) * 2 + 60000)
end
return answer
