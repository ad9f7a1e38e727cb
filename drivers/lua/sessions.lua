-- Sessions, and how they end.
--
-- A session is a client in one tube. Its token is sNUMBER.BORN.UUID: its number, the moment when the tube was
-- created, and a part of its uuid. The score of each task in ':taken' contains the number of the session that holds
-- it. The sorted set ':leases' has the token and the end of the lease, which the client extends while it lives. When
-- a lease expires, timers.lua releases the tasks of the session and forgets it; `leave` does so when the client
-- closes the tube.
--
-- The meta hash has the token as a field, which says that the session lives. Its value is the uuid, followed for each
-- caller by ' CALLER:SLOT' with the highest slot in which that caller stores replies.
local Call = require 'call'
local Entry = require 'entry'
local RateLimits = require 'rate_limits'

local call = redis.call
local match = string.match
local format = string.format

local Sessions = {}

-- True if a session belongs to a stream. The uuid of a stream is made from its name (version 5), other uuids are
-- random.
local function is_stream(token)
  return match(token, '%.%x+5%x%x%x$')
end

-- Return the number of the session with a token.
local function number_of(token)
  return tonumber(match(token, '%d+'))
end

-- Release tasks in the order of their ids; return how many, until the call is spent if it `stops`. `why`: the reason why
-- the attempts ended; `streams`: the numbers of the sessions of streams, whose takes do not count as attempts.
local function release_each(ids, why, streams, stops)
  local move = require('engine').move
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, #ids do
    if stops and Call.is_spent() then return n - 1 end
    local task = Entry.find(ids[n])
    if not task then
      call('ZREM', Call.keys.taken, ids[n])
    else
      Entry.notify_holder(task, 'release')
      local is_last = not streams[task.owner] and Entry.is_last(task)
      if streams[task.owner] then task.attempts = task.attempts - 1 end
      if is_last then task.reason = '00max_attempts: ' .. why end
      move(task, is_last and 'release_last' or 'release')
    end
  end
  return #ids
end

-- Release tasks of any sessions, as `release_each` does.
function Sessions.release_for_all(ids, stops)
  local streams = {}
  for _, token in ipairs(call('ZRANGE', Call.keys.leases, 0, -1)) do
    if is_stream(token) then streams[number_of(token)] = true end
  end
  return release_each(ids, 'release', streams, stops)
end

-- Release the tasks of a session by its token, at most `limit`. Return how many it held; huge: the call is spent.
function Sessions.release(token, limit)
  local session, taken = number_of(token), Call.keys.taken
  local first = session * Call.TAKES
  local all = call('ZCOUNT', taken, first, first + Call.TAKES - 1)
  local ids = call('ZRANGEBYSCORE', taken, first, first + Call.TAKES - 1, 'LIMIT', 0, limit)
  return release_each(ids, 'session', { [session] = is_stream(token) }, true) == #ids and all or math.huge
end

-- Add the slot of this call to the session's field if it is the caller's highest so far. The first call in each slot
-- does so. Some slots are letters: see `remove`.
function Sessions.store_slot()
  local caller, slot = match(Call.args[3], '([^.]+)%.([^.]+)$')
  slot = tonumber(slot) or 0
  local about, entry = Call.values[1], ' ' .. caller .. ':'
  local known = match(about, entry .. '(%d+)')
  if known and known + 0 >= slot then return end
  about = string.gsub(about, entry .. '%d+', '') .. entry .. slot
  call('HSET', Call.key, Call.args[2], about)
end

-- Forget a session, the last replies to its callers, and some of the processes whose waiting has expired. Return
-- false if a caller has so many slots that another call is needed.
function Sessions.remove(token)
  local M, K = Call.key, Call.keys
  local about = call('HGET', M, token) or ''
  for caller, last in string.gmatch(about, ' (%w+):(%d+)') do
    local field = 'a' .. token .. '.' .. caller .. '.'
    local fields, first = { field .. 'w', field .. 'v', field .. 's' }, math.max(last - 999, 0)
    for slot = first, last do fields[#fields + 1] = format('%s%d', field, slot) end
    call('HDEL', M, unpack(fields))
    if first > 0 then
      local left = string.gsub(about, ' ' .. caller .. ':%d+', format(' %s:%d', caller, first - 1))
      call('HSET', M, token, left)
      return false
    end
  end
  call('ZREM', K.leases, token)
  local named = 'u' .. match(about, '^%x*')
  -- The client may have opened a new session since.
  if call('HGET', M, named) == token then call('HDEL', M, named) end
  call('HDEL', M, token)
  local processes = call('HRANDFIELD', K.waiting, 100, 'WITHVALUES')
  for n = 1, #processes, 2 do
    if tonumber(match(processes[n + 1], '%d+$')) <= Call.now then call('HDEL', K.waiting, processes[n]) end
  end
  return true
end

-- There are listeners until the moment `ends`. Keep the version of the options, which is in the same field.
local function set_listening(ends)
  local version = match(call('HGET', Call.key, 'listening') or '', ' %x+$')
  call('HSET', Call.key, 'listening', format('%.0f', ends) .. (version or ''))
end

-- Shorten leases that end later than now plus the longest lease: they were written before the clock was set back.
-- Otherwise a dead session would hold its tasks until then.
local function shorten_leases()
  local M, K = Call.key, Call.keys
  local longest = call('HGET', M, 'lease')
  if not longest then return end
  local furthest = Call.now + longest
  local late = call('ZRANGEBYSCORE', K.leases, format('(%.0f', furthest), '(+inf', 'LIMIT', 0, 1000)
  if #late == 0 then return end
  for n = 1, #late do call('ZADD', K.leases, furthest, late[n]) end
  local soonest, listening = unpack(call('HMGET', M, 'soonest', 'listening'))
  if soonest and soonest + 0 > furthest then call('HSET', M, 'soonest', furthest) end
  if listening and match(listening, '^%S+') + 0 > furthest then set_listening(furthest) end
end

-- End the session, and release its tasks.
-- ARGV  6 the microseconds until the session ends if no call renews it ('': end it now), 7 the process, if it has no
--       waiting callers
-- reply  nothing; AGAIN while the session has tasks
function Sessions.leave(args)
  local K = Call.keys
  call('HDEL', K.waiting, args[7])
  if args[6] ~= '' then
    local moment, lease = Call.now + args[6], tonumber(call('ZSCORE', K.leases, args[2]) or nil)
    -- Another process may share the session, with a longer lease. A lease without an end was set by this process.
    if lease and lease < math.huge then moment = math.max(moment, lease) end
    call('ZADD', K.leases, moment, args[2])
    Call.note_due(moment)
  elseif Sessions.release(args[2], Call.plan.batch) > Call.plan.batch or not Sessions.remove(args[2]) then
    return Call.stop_early()
  end
end

-- Release all taken tasks of all sessions: some per call, in the order of their ids.
-- reply  nothing; AGAIN while more tasks are taken
function Sessions.release_all()
  local all = call('ZCARD', Call.keys.taken)
  local ids = call('ZRANGE', Call.keys.taken, 0, Call.plan.batch - 1)
  if all > Sessions.release_for_all(ids, true) then return Call.stop_early() end
  return nil, ''
end

-- Publish every change of a task from now on.
-- ARGV  6 microseconds for which to publish ('': without end)
-- reply  the next due time (0: none)
function Sessions.listen(args)
  set_listening(args[6] ~= '' and Call.now + args[6] or 1e18)
  return Call.soonest or 0
end

-- Renew the leases of sessions, unless they have expired. Remove some expired keys, also from a tube without other
-- calls.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the lease in microseconds, 2 '1': the caller listens to the tube, 3… the fields that mark the sessions as
--       alive
-- reply  the fields of sessions that have expired
function Sessions.heartbeat(args)
  local M, K = Call.key, Call.keys
  local now = Call.time()
  Call.now = now
  if call('HEXISTS', M, 'born') == 0 then return redis.error_reply(Call.TUBE_GONE) end
  local expired = {}
  for n = 3, #args do
    local ends = call('ZSCORE', K.leases, args[n])
    if ends and tonumber(ends) > now then
      -- Another process may share the session, with a longer lease.
      call('ZADD', K.leases, 'GT', now + args[1], args[n])
    else
      expired[#expired + 1] = args[n]
    end
  end
  shorten_leases()
  if args[2] ~= '' then set_listening(now + args[1]) end
  require('keys').expire()
  return expired
end

-- Create the meta hash of a tube.
local function create(args, born)
  local M, K = Call.key, Call.keys
  call('HSET', M, 'born', born, 'driver', args[5], 'options', args[6], 'capacity', args[7], 'next', 0, 'maker', args[8], 'layout', args[9])
  -- If only the meta hash was removed, the other keys are left from the old tube. The markers stay: they wake waiters.
  local left = {}
  for _, part in ipairs(Call.PARTS) do
    if part ~= 'marker' and part ~= 'room' then left[#left + 1] = K[part] end
  end
  call('UNLINK', unpack(left))
  local o = cjson.decode(args[6])
  -- The tube expires after `idle` milliseconds without a call.
  if o.idle then call('PEXPIRE', M, o.idle) end
  local rounds, from_end = o.order == 'round_robin' and 1 or 0, o.interval_from == 'ack' and 1 or 0
  local limits = format('%.0f %.17g %.0f %d %d', o.interval or 0, o.jitter or 0, o.max_in_flight or 1, rounds, from_end)
  if limits ~= RateLimits.NONE then
    call('HSET', M, 'rate_limits', limits .. (o.lane_burst and format(' %.0f', o.lane_burst) or ''))
  end
end

-- Return the token of a new session.
local function new_session(uuid, born)
  local M, K = Call.key, Call.keys
  local number, most = call('HINCRBY', M, 'sessions', 1), 134217727
  if number > most then
    -- All numbers were used: find the next number without a living session.
    local living = {}
    for _, other in ipairs(call('ZRANGE', K.leases, 0, -1)) do living[number_of(other)] = true end
    repeat number = number % most + 1 until not living[number]
  end
  -- A server that lost the session may assign its number again, so the token contains the uuid.
  local token = format('s%d.%s.%s', number, born, string.sub(uuid, 1, 16))
  call('HSET', M, token, uuid, 'u' .. uuid, token)
  return token
end

-- Open a tube for a session; create the tube if it does not exist.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the session's uuid, 2 its lease in microseconds ('': as long as its callers live), 3 the time in microseconds
--       ('': the server's), 4 'new': create the tube; 'same': create it, or open it if driver and options are equal;
--       'any': it must exist; 'keep': create it, or open the existing one; 'alike': as 'same', but only the driver must
--       be equal, 5 its driver, 6 its options, 7 its capacity, 8 an id of the creating call, so that it can be sent
--       again, 9 the version of the layout of its keys
-- reply  {driver, options, the number of the session, the field that marks it as alive, the time, '1' if the user may
--        not publish events, the version of the options ('': the tube was never altered), the commands that the user may
--        not run}; only driver and options if the tube exists and should not, or differs
function Sessions.open(args)
  local M, K = Call.key, Call.keys
  local lacks = {}
  -- Servers before Redis 7 cannot tell.
  local acl = redis.acl_check_cmd
  if acl then
    local missing = {}
    local needed = require('functions').NEEDED
    for name, count in pairs(require('functions').COMMANDS) do
      local known, has = pcall(acl, name, unpack({ M, '', '' }, 1, count))
      if not (known and has) then table.insert(needed[name] and missing or lacks, name) end
    end
    table.sort(missing)
    if #missing > 0 then return redis.error_reply('NOPERM the user has no permission to run ' .. table.concat(missing, ', ')) end
    if not acl('HSET', K.tasks, '', '') then
      return redis.error_reply('NOPERM the user has no permission for the keys that begin with ' .. M .. ':')
    end
  end
  local t = call('TIME')
  local now = tonumber(args[3]) or t[1] * 1000000 + t[2]
  Call.now = now
  if call('HEXISTS', M, 'born') == 1 then
    if call('HGET', M, 'layout') ~= args[9] then
      return redis.error_reply('LAYOUT ' .. M .. ' was made by another version of tubes, which stores tasks differently: export it with that version')
    end
    local there = call('HMGET', M, 'driver', 'options', 'maker')
    local maker = table.remove(there)
    local alike = there[1] == args[5]
    local may_open = { new = maker == args[8], same = alike and there[2] == args[6], alike = alike }
    if may_open[args[4]] == false then return there end
  elseif args[4] == 'any' then
    return redis.error_reply(Call.TUBE_GONE)
  else
    if call('EXISTS', M) == 1 then return redis.error_reply('LAYOUT ' .. M .. ' is incomplete: run tubes repair') end
    create(args, t[1] .. format('%06d', t[2]))
  end
  local about = call('HMGET', M, 'u' .. args[1], 'born', 'driver', 'options', 'soonest', 'listening')
  local token = about[1]
  -- A session whose lease has expired is about to be removed: make a new one.
  local lease = token and call('ZSCORE', K.leases, token)
  if not lease or tonumber(lease) <= now then token = new_session(args[1], about[2]) end
  local ends = args[2] ~= '' and now + args[2] or math.huge
  call('ZADD', K.leases, 'GT', ends < math.huge and ends or '+inf', token)
  if ends < math.huge and args[2] + 0 > (call('HGET', M, 'lease') or 0) + 0 then call('HSET', M, 'lease', args[2]) end
  shorten_leases()
  local left = call('PTTL', M)
  if left > 0 then call('PEXPIRE', K.leases, left) end
  if ends < (tonumber(about[5]) or math.huge) then call('HSET', M, 'soonest', ends) end
  local cannot_publish = acl and not acl('PUBLISH', K.events, '')
  return {
    about[3], about[4], number_of(token), token, now, cannot_publish and '1' or '',
    match(about[6] or '', ' (%x+)$') or '', table.concat(lacks, ' '),
  }
end

-- Maintain a session that several connections share.
-- KEYS[1]  its hash
-- ARGV  1 'publish', 'again', 'join', 'tube', 'heartbeat', 'leave' or 'lose', 2 its lease in microseconds ('':
--       while callers live), 3 the time in microseconds ('': the server's), 4 the name of a tube in which it is open
--       ('': none), 5 microseconds that it outlives the last lost caller, 6 the caller's name
-- reply  {the number of callers, the names of its tubes}; nil if it has ended, or the server has lost it
function Sessions.session(args)
  local key, what = Call.key, args[1]
  local now = Call.time(args[3])
  local ends = call('HGET', key, 'ends')
  if ends and tonumber(ends) <= now then
    call('DEL', key)
    ends = false
  end
  local caller = 'caller:' .. args[6]
  if what ~= 'publish' and what ~= 'again' and not ends then return false end
  if what == 'leave' or what == 'lose' then
    call('HDEL', key, caller)
  elseif what ~= 'tube' then
    -- Each heartbeat writes it as well, because the server may have lost it.
    call('HSET', key, caller, 1)
  end
  -- Other callers are unknown until their next heartbeat. The entry '?' keeps the session until its lease ends.
  if what == 'again' then call('HSET', key, 'caller:?', 1) end
  if args[4] ~= '' then call('HSET', key, 'tube:' .. args[4], 1) end
  local callers = 0
  local all = call('HGETALL', key)
  local result = { 0 }
  for n = 1, #all, 2 do
    local kind, name = match(all[n], '^(%l+):(.*)')
    if kind == 'tube' then result[#result + 1] = name elseif kind == 'caller' then callers = callers + 1 end
  end
  result[1] = callers
  if callers <= 0 and what == 'leave' then
    call('DEL', key)
  elseif args[2] == '' then
    call('HSET', key, 'ends', callers > 0 and 1e18 or now + args[5])
  else
    -- Another caller may have a longer lease.
    local longest = math.max(args[2], call('HGET', key, 'lease') or 0)
    -- The end is further ahead than the longest lease only if the clock was set back.
    local lease = math.max(args[2], ends and tonumber(ends) < 1e18 and math.min(ends - now, longest) or 0)
    call('HSET', key, 'ends', now + lease, 'lease', longest)
    call('PEXPIRE', key, math.ceil(lease / 1000) * 2 + 60000)
  end
  return result
end

return Sessions
