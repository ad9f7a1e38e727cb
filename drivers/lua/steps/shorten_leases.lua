-- Shorten leases that end later than now plus the longest lease: they were written before the clock was set back.
-- Otherwise a dead session would hold its tasks until then.
-- in: nothing
local longest = call('HGET', M, 'lease')
if longest then
  local furthest = now + longest
  local late = call('ZRANGEBYSCORE', M .. ':leases', string.format('(%.0f', furthest), '(+inf', 'LIMIT', 0, 1000)
  for n = 1, #late do call('ZADD', M .. ':leases', furthest, late[n]) end
  if #late > 0 then
    local soonest, listening = unpack(call('HMGET', M, 'soonest', 'listening'))
    if soonest and soonest + 0 > furthest then call('HSET', M, 'soonest', furthest) end
    if listening and string.match(listening, '^%S+') + 0 > furthest then
      local ends = furthest
      --#include set_listening
    end
  end
end
