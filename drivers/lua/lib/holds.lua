-- What a session leaves when it ends.

-- Release tasks, in the order of their ids; `why`: what has ended the attempts.
local function release_each(ids, why)
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, #ids do
    local task, due = find(ids[n])
    if is_last(task) then
      task.reason = 'max_attempts: ' .. why
--#move release_last t
    else
--#move release t
    end
  end
end

-- Release what a session holds, up to `limit` tasks; answers how many it held.
local function release_of(session, limit)
  local first = session * TURNS
  local all = call('ZCOUNT', M .. ':taken', first, first + TURNS - 1)
  local ids = call('ZRANGEBYSCORE', M .. ':taken', first, first + TURNS - 1, 'LIMIT', 0, limit)
  release_each(ids, 'session')
  return all
end

-- Forget sessions by their tokens, their callers' last answers, and processes that have not waited for long.
local function forget(tokens)
  local known = {}
  for _, token in ipairs(tokens) do
    known[token] = true
    call('ZREM', M .. ':leases', token)
    local named = 'u' .. (call('HGET', M, token) or '')
    -- The session may have opened the tube anew.
    if call('HGET', M, named) == token then call('HDEL', M, named) end
    call('HDEL', M, token)
  end
  for _, field in ipairs(call('HKEYS', M)) do
    if known[string.match(field, '^a(s%d+%.%d+)%.')] then call('HDEL', M, field) end
  end
  local processes = call('HGETALL', M .. ':waiting')
  for n = 1, #processes, 2 do
    if tonumber(string.match(processes[n + 1], '%d+$')) <= now then call('HDEL', M .. ':waiting', processes[n]) end
  end
end
