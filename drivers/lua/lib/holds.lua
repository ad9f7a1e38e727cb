-- What a session leaves when it ends.

-- Release what it holds, in the order of the ids, up to `limit` tasks; answers how many it held.
local function release_of(session, limit)
  local first = session * TURNS
  local ids = call('ZRANGEBYSCORE', M .. ':taken', first, first + TURNS - 1)
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, math.min(#ids, limit) do
    local task, due = find(ids[n])
--#move release t
  end
  return #ids
end

-- Forget it, and its callers' last answers, which are numbered from 0 without gaps.
local function forget(token)
  call('ZREM', M .. ':leases', token)
  local uuid = call('HGET', M, token)
  local fields = call('HGET', M, 'm' .. token)
  call('HDEL', M, token, 'm' .. token, 'u' .. (uuid or ''))
  for member = 0, tonumber(fields or 0) do
    local prefix, slot = 'a' .. token .. '.' .. member .. '.', 0
    call('HDEL', M, prefix .. 'w', prefix .. 's')
    while call('HDEL', M, prefix .. slot) == 1 do slot = slot + 1 end
  end
end
