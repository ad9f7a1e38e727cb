-- What a session leaves when it ends.

-- Whether a session is that of a stream: its uuid is made of a name, which is version 5; others are random.
local function is_stream(token)
  return string.match(token, '%.%x+5%x%x%x$')
end

-- Release tasks, in the order of their ids; `why`: what has ended the attempts. What a stream has taken is no attempt when
-- it comes back; `streams` has the numbers of their sessions.
local function release_each(ids, why, streams)
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, #ids do
    local task, due = find(ids[n])
    if not task then
      call('ZREM', M .. ':taken', ids[n])
    elseif streams[task.owner] then
      task.attempts = task.attempts - 1
--#move release t
    elseif is_last(task) then
      task.reason = 'max_attempts: ' .. why
--#move release_last t
    else
--#move release t
    end
  end
end

-- Release what the session of a token holds, up to `limit` tasks; answers how many it held.
local function release_of(token, limit)
  local session = tonumber(string.match(token, '%d+'))
  local first = session * TAKES
  local all = call('ZCOUNT', M .. ':taken', first, first + TAKES - 1)
  local ids = call('ZRANGEBYSCORE', M .. ':taken', first, first + TAKES - 1, 'LIMIT', 0, limit)
  release_each(ids, 'session', { [session] = is_stream(token) })
  return all
end

-- The field that says that a session lives, META.session, has its uuid and, for each of its callers, ' caller:slot' with
-- the highest slot in which that keeps answers. A call says so that is the first one of its slot.
local function note_slot()
  local caller, slot = string.match(ARGV[3], '([^.]+)%.([^.]+)$')
  -- Some slots have letters: see `forget`.
  slot = tonumber(slot) or 0
  local about, entry = META.session, ' ' .. caller .. ':'
  local known = string.match(about, entry .. '(%d+)')
  if known and known + 0 >= slot then return end
  about = string.gsub(about, entry .. '%d+', '') .. entry .. slot
  call('HSET', M, ARGV[2], about)
end

-- Forget a session by its token, its callers' last answers, and processes that have not waited for long, of very many
-- some. Whether that is done: a caller has had so many slots that there is more.
local function forget(token)
  local about = call('HGET', M, token) or ''
  for caller, last in string.gmatch(about, ' (%w+):(%d+)') do
    local field = 'a' .. token .. '.' .. caller .. '.'
    local fields, first = { field .. 'w', field .. 'v', field .. 's' }, math.max(last - 999, 0)
    for slot = first, last do fields[#fields + 1] = string.format('%s%d', field, slot) end
    call('HDEL', M, unpack(fields))
    if first > 0 then
      local left = string.gsub(about, ' ' .. caller .. ':%d+', string.format(' %s:%d', caller, first - 1))
      call('HSET', M, token, left)
      return false
    end
  end
  call('ZREM', M .. ':leases', token)
  local named = 'u' .. string.match(about, '^%x*')
  -- The session may have opened the tube anew.
  if call('HGET', M, named) == token then call('HDEL', M, named) end
  call('HDEL', M, token)
  local processes = call('HRANDFIELD', M .. ':waiting', 100, 'WITHVALUES')
  for n = 1, #processes, 2 do
    if tonumber(string.match(processes[n + 1], '%d+$')) <= now then call('HDEL', M .. ':waiting', processes[n]) end
  end
  return true
end
