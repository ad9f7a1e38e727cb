-- Sessions, and how they end.
--
-- A session is a client in one tube. Its token is sNUMBER.BORN.UUID: its number, the moment when the tube was
-- created, and a part of its uuid. The score of each task in ':taken' contains the number of the session that holds
-- it. The sorted set ':leases' has the token and the end of the lease, which the client extends while it lives. When
-- a lease expires, process_due.lua releases the tasks of the session and forgets it; `leave` does so when the client
-- closes the tube.
--
-- The meta hash has the token as a field, which says that the session lives. Its value is the uuid, followed for each
-- caller by ' CALLER:SLOT' with the highest slot in which that caller stores replies.

-- True if a session belongs to a stream. The uuid of a stream is made from its name (version 5), other uuids are
-- random.
local function is_stream(token)
  return string.match(token, '%.%x+5%x%x%x$')
end

-- Release tasks in the order of their ids. `why`: the reason why the attempts ended; `streams`: the numbers of the
-- sessions of streams, whose takes do not count as attempts.
local function release_each(ids, why, streams)
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, #ids do
    local task, due = find(ids[n])
    if task then notify_holder(task, 'release') end
    if not task then
      call('ZREM', M .. ':taken', ids[n])
    elseif streams[task.owner] then
      task.attempts = task.attempts - 1
--#move release t
    elseif is_last(task) then
      task.reason = '00max_attempts: ' .. why
--#move release_last t
    else
--#move release t
    end
  end
end

-- Release tasks of any sessions.
local function release_for_all(ids)
  local streams = {}
  for _, token in ipairs(call('ZRANGE', M .. ':leases', 0, -1)) do
    if is_stream(token) then streams[tonumber(string.match(token, '%d+'))] = true end
  end
  release_each(ids, 'release', streams)
end

-- Release the tasks of a session by its token, at most `limit`. Return the number of tasks that it held.
local function release_session(token, limit)
  local session = tonumber(string.match(token, '%d+'))
  local first = session * TAKES
  local all = call('ZCOUNT', M .. ':taken', first, first + TAKES - 1)
  local ids = call('ZRANGEBYSCORE', M .. ':taken', first, first + TAKES - 1, 'LIMIT', 0, limit)
  release_each(ids, 'session', { [session] = is_stream(token) })
  return all
end

-- Add the slot of this call to the session's field if it is the caller's highest so far. The first call in each slot
-- does so.
local function store_slot()
  local caller, slot = string.match(ARGV[3], '([^.]+)%.([^.]+)$')
  -- Some slots are letters: see `remove_session`.
  slot = tonumber(slot) or 0
  local about, entry = META.session, ' ' .. caller .. ':'
  local known = string.match(about, entry .. '(%d+)')
  if known and known + 0 >= slot then return end
  about = string.gsub(about, entry .. '%d+', '') .. entry .. slot
  call('HSET', M, ARGV[2], about)
end

-- Forget a session, the last replies to its callers, and some of the processes whose waiting has expired. Return
-- false if a caller has so many slots that another call is needed.
local function remove_session(token)
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
  -- The client may have opened a new session since.
  if call('HGET', M, named) == token then call('HDEL', M, named) end
  call('HDEL', M, token)
  local processes = call('HRANDFIELD', M .. ':waiting', 100, 'WITHVALUES')
  for n = 1, #processes, 2 do
    if tonumber(string.match(processes[n + 1], '%d+$')) <= now then call('HDEL', M .. ':waiting', processes[n]) end
  end
  return true
end
