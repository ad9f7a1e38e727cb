-- The frame of every call of a session.
--
-- How a call runs (`Functions.run`). (1) `Call.begin` reads the clock and, with one HMGET, the fields of the meta hash that the method
-- needs. (2) The session must live, else SESSIONGONE. (3) The caller must know the current options of the tube, else
-- ALTERED: it encodes their defaults. (4) Due tasks, lanes and sessions are processed (timers.lua); if much is due, the
-- call ends with AGAIN, and the caller repeats it. (5) A call that was sent twice has the number of the last one in its
-- slot: it has no effect, and gets the stored reply. (6) The method runs; it is a function of its arguments in one of
-- the other files, listed in functions.lua. It returns its reply and, if it has changed something, the text to store
-- for a repeated call. (7) `Call.finish` wakes waiting processes (waiting.lua), and writes the counters and that text. A
-- function with the trait `early` has only the steps 1, 2 and 6. A call that was overtaken by its own retry gets LATE.
--
-- KEYS[1]  the tube's meta hash; the other keys are KEYS[1]..':tasks' etc., in the same hash slot
-- ARGV[1]  the number of the caller's session in this tube; in a tube whose options were changed, followed by the
--          version of the options that the caller has
-- ARGV[2]  the field of the meta hash that exists while this session does
-- ARGV[3]  the field of the meta hash that stores the last reply in this slot of the caller
-- ARGV[4]  the number of the call: 16 digits, increasing in each slot
-- ARGV[5]  the time in microseconds; '': the server's
-- ARGV[6…] the arguments of the method; empty ones at the end may be omitted
--
-- A server runs one call at a time, so the fields of `Call` describe the call that runs; `Call.values` are the values that
-- it has read (the record of the session, the last reply in its slot, `soonest` and others), and what it notes for its end.
local Pending = require 'pending'
local Plan = require 'plan'

local call = redis.call
local sub = string.sub
local find = string.find
local match = string.match

local Call = {}

-- The score of a taken task: the number of its session times this, plus the number of its take.
local TAKES = 67108864
Call.TAKES = TAKES
-- The maximum of the attempts counter.
Call.MOST_ATTEMPTS = 1048575
-- Microseconds for which a process stays registered as waiting. It registers again before they end.
Call.WATCHED = 10000000
-- Size limit of a reply in bytes of tasks. The next call returns the others.
Call.BYTES = 2000000
-- Bytes of tasks that a call reads and writes; it leaves further tasks to the next call.
Call.WORK = 4000000
-- The longest ttl, ttr and delay.
Call.LONGEST = 6307200000000000
Call.TUBE_GONE = 'TUBEGONE there is no such tube'
Call.SESSION_GONE = 'SESSIONGONE its lease has ended'
-- The keys of a tube in addition to its meta hash.
Call.PARTS = {
  'tasks', 'ready', 'taken', 'due', 'buried', 'back', 'offers', 'behind', 'lanes', 'cooldowns', 'fill', 'crowded', 'keys',
  'known', 'done', 'ended', 'leases', 'waiting', 'wanting', 'line', 'marker', 'room', 'sealed', 'broken',
}

-- What is known of tubes by their meta hash: the names of their keys; and by the tokens of sessions the plan, the version of
-- the options and the number of each.
local tubes, tube_count = {}, 0
local NO_FIELDS = {}

-- Return the names of the keys of a tube by their parts: `keys.tasks`.
local function keys_of(key)
  return setmetatable({ ['#'] = find(key, '#%d+%.%d+%.%w+}') ~= nil }, {
    __index = function(keys, part)
      local name = key .. ':' .. part
      keys[part] = name
      return name
    end,
  })
end

local function tube_of(key)
  local tube = tubes[key]
  if not tube then
    if tube_count >= 10000 then tubes, tube_count = {}, 0 end
    tube = { keys = keys_of(key), plans = {}, versions = {}, numbers = {}, sessions = 0 }
    tubes[key], tube_count = tube, tube_count + 1
  end
  return tube
end

-- True if the tube is a partition: its name says so (tubes/partitions/layout.py).
function Call.is_partition()
  return Call.keys['#']
end

-- The server's time in microseconds, unless the caller says another one.
function Call.time(argument)
  if argument and argument ~= '' then return tonumber(argument) end
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

-- True if a call must leave further tasks to the next one. It is never true when a method begins.
function Call.is_spent()
  return Pending.bytes >= Call.WORK
end

-- Call `act(name, value)` for about `count` entries of a hash ('HSCAN') or a sorted set ('ZSCAN'), until the call is spent;
-- return the next cursor.
function Call.scan(command, key, cursor, count, act)
  repeat
    local page = call(command, key, cursor, 'COUNT', 2)
    cursor, count = page[1], count - 2
    for n = 1, #page[2], 2 do
      Pending.bytes = Pending.bytes + #page[2][n + 1]
      act(page[2][n], page[2][n + 1])
    end
  until cursor == '0' or count <= 0 or Call.is_spent()
  return cursor
end

-- Write the changed fields of the meta hash before the end of the call.
function Call.write_changed()
  if #Call.changed > 0 then call('HSET', Call.key, unpack(Call.changed)) end
  Call.changed = NO_FIELDS
end

-- End a call before its work is done: the caller sends it again.
function Call.stop_early()
  Call.write_changed()
  return redis.error_reply('AGAIN call again')
end

-- Start a call that belongs to no session.
function Call.open(key)
  Call.key, Call.keys, Pending.bytes = key, tube_of(key).keys, 0
end

-- Plans by the texts of a driver and of options. A token belongs to one tube, but a name to one in each database.
local plans, plan_count = {}, 0

local function plan_of(driver, options)
  local text = driver .. options
  if not plans[text] then
    if plan_count >= 1000 then plans, plan_count = {}, 0 end
    plans[text], plan_count = Plan.of(driver, options), plan_count + 1
  end
  return plans[text]
end

-- Read the plan of a tube for a session that knows this version of its options.
local function read_plan(tube, key, token, version)
  if tube.sessions >= 1000 then tube.plans, tube.versions, tube.numbers, tube.sessions = {}, {}, {}, 0 end
  tube.plans[token], tube.versions[token], tube.sessions = plan_of(Plan.texts(key)), version, tube.sessions + 1
end

-- Return the number of a session and the version of the options that it knows.
local function read_session(tube, text)
  local number, known = match(text, '^(%d+) ?(%x*)$')
  if known == '' then tube.numbers[text] = number + 0 end
  return number + 0, known
end

-- Start a call. Return an error reply if the method must not run.
function Call.begin(method, key, args)
  Pending.bytes = 0
  local tube, token, number = tubes[key] or tube_of(key), args[2], args[4]
  local plan = tube.plans[token]
  local names = plan and (plan.fields[method] or Plan.fields_of(plan, method)) or Plan.BASE_FIELDS
  local now = args[5]
  if now == '' then
    local t = call('TIME')
    now = t[1] * 1000000 + t[2]
  else
    now = now + 0
  end
  local values = call('HMGET', key, token, args[3], unpack(names))
  if not values[1] then
    return redis.error_reply(call('EXISTS', key) == 1 and Call.SESSION_GONE or Call.TUBE_GONE)
  end
  -- One field holds two values, since most tubes have neither: until when clients listen to events, and the version of
  -- the options if they were changed.
  local last, soonest, waiting, listening, version = values[2], values[3], values[4], values[5], ''
  if listening then listening, version = match(listening, '^(%S+) ?(%x*)$') end
  if tube.versions[token] ~= version then
    read_plan(tube, key, token, version)
    return Call.begin(method, key, args)
  end
  -- Fields that this method does not read. They are false, not nil: Lua rehashes a table whose fields come and go.
  if Call.names ~= names then
    Call.names, Call.plan = names, plan
    Call.strays, Call.rate_limits, Call.filled, Call.filling, Call.bucket = false, false, false, false, false
    Call.next, Call.takes, Call.acks, Call.lanes, Call.paused, Call.born = false, false, false, false, false, false
  end
  for n = 4, #names do Call[names[n]] = values[n + 2] end
  local session, known = tube.numbers[args[1]], ''
  if not session then session, known = read_session(tube, args[1]) end
  soonest = soonest and soonest + 0
  Call.key, Call.keys, Call.args, Call.now, Call.values = key, tube.keys, args, now, values
  Call.session, Call.soonest, Call.changed, Call.replayed = session, soonest, NO_FIELDS, false
  Call.waiting, Call.listening = waiting and waiting + 0 > now, listening and listening + 0 > now
  if method.takes then Call.take = number % TAKES end
  if method.early then return end
  if version ~= known and sub(last or '', 1, 16) ~= number then
    -- A repeated call still gets its first reply.
    return redis.error_reply('ALTERED the options are outdated')
  end
  if soonest and now >= soonest then
    local refusal = require('timers').process_due()
    if refusal then return refusal end
  end
  -- A number below the last one belongs to a request that its own retry has overtaken. The field is NUMBER:REPLY, so
  -- fields sort by number. Ignore a value that no call has written.
  if last and last >= number and find(last, '^%d+:') then
    if sub(last, 1, 16) ~= number then
      Call.write_changed()
      return redis.error_reply('LATE a later call was answered')
    end
    Call.replayed = sub(last, 18)
  end
end

-- Something happens at `moment`: the next call after it processes it.
function Call.note_due(moment)
  if not Call.soonest or moment < Call.soonest then Call.set('soonest', moment) end
end

-- End a call: wake waiting processes, and store the text for a repeated call with the counters (`stored` nil: the call
-- has changed nothing that a repeated call must not change again).
function Call.finish(stored)
  local values, args = Call.values, Call.args
  if values.gone then return end
  if Call.waiting or Call.filling or Call.strays or Call.plan.idle then require('waiting').flush() end
  if not stored then return Call.write_changed() end
  if not values[2] then require('sessions').store_slot() end
  call('HSET', Call.key, args[3], args[4] .. ':' .. stored, unpack(Call.changed))
end

-- Set a field of the meta hash that this call has read. The end of the call writes it.
function Call.set(name, value)
  local counters = Call.changed
  Call[name] = value
  if counters == NO_FIELDS then
    Call.changed = { name, value }
    return
  end
  for n = 1, #counters, 2 do
    if counters[n] == name then
      counters[n + 1] = value
      return
    end
  end
  counters[#counters + 1], counters[#counters + 2] = name, value
end

-- Increment a counter of the meta hash that this call has read, by 1 or `by`, and return it.
function Call.increment(name, by)
  local value = (Call[name] or 0) + (by or 1)
  Call.set(name, value)
  return value
end

-- Return the fields of the call that runs, and restore them after another call inside it.
function Call.save()
  local saved = {}
  for name, value in pairs(Call) do
    if type(value) ~= 'function' then saved[name] = value end
  end
  return saved
end

function Call.restore(saved)
  for name in pairs(Call) do
    if type(Call[name]) ~= 'function' then Call[name] = saved[name] end
  end
end

-- True if no task may be taken until a pause ends.
function Call.is_paused()
  return Call.paused and Call.paused + 0 > Call.now
end

return Call
