-- Reads: tasks and lists of tasks, figures of a tube, and lanes. Reads process due tasks first, but store no reply.
local Call = require 'call'
local Done = require 'done'
local Entry = require 'entry'
local Lanes = require 'lanes'
local Lists = require 'lists'
local RateLimits = require 'rate_limits'
local Ready = require 'ready'
local Waiting = require 'waiting'

local call = redis.call
local unpack_struct = struct.unpack
local byte = string.byte
local sub = string.sub
local find = string.find
local format = string.format
local place, id_at = Ready.place, Ready.id_at
local NOT_FOUND = 'NOTFOUND there is no such task'

local Reads = {}

-- Filters of selections ------------------------------------------------------------------------------------------------

-- Return the kind of a stored reason, and the reason; `none` for a task without a reason.
local function kind_of(words)
  if not words then return 'none' end
  return Entry.kind_of(words)
end

-- The size in bytes of the longest data that are decoded, which takes 0.1 s: see task_data.py.
local MAX_DECODED = 1048576

-- True if the data of a task call the function `name`: their member `task`. The first byte distinguishes a map of
-- MessagePack from a JSON object. Data that cannot be decoded call none.
local function calls_function(task, name)
  local value, body = task.value, task.body
  if #value - body >= MAX_DECODED then return false end
  if not find(value, '^[\128-\143\222\223]', body) then
    -- JSON without backslashes contains its strings as they are.
    if not find(value, name, body, true) and not find(value, '\\', body, true) then return false end
    local reads, data = pcall(cjson.decode, sub(value, body))
    return reads and type(data) == 'table' and data.task == name
  end
  local at = find(value, '\164task' .. cmsgpack.pack(name), body, true)
  if not at then return false end
  local reads, last, data = pcall(cmsgpack.unpack_one, sub(value, body))
  if reads then return last == -1 and type(data) == 'table' and data.task == name end
  -- Lua cannot read some types, such as timestamps. Then `task` must be the first member.
  local first = byte(value, body)
  return find(last, 'Bad data format', 1, true) and at == body + (first == 222 and 3 or first == 223 and 5 or 1)
end

-- Return a function that encodes a task for the reply, or returns nil if the filter excludes the task. `packed`: '':
-- every task, as `Entry.encode` encodes it. Else the filter, as strings in MessagePack: 1 the id from which on tasks
-- are excluded, 2 the least age in microseconds, 3 the least number of attempts, 4 '=' and the lane, 5 the key,
-- 6 the reason or its kind, 7 a text in the data (each '': any), 8 '1': the reply has only the facts and the moment of
-- the put of each task, 9 the function that it calls. `record`: of a kept done task, the reply for it. Also return how
-- much a byte of a task counts: to search it for a text may take several times as long as to read it, and to decode it
-- even longer.
function Reads.filter_of(packed)
  if packed == '' then return Entry.encode, 1 end
  local bound, age, least, lane, key, wanted, part, bare, name = unpack(cmsgpack.unpack(packed))
  bound, age, least = tonumber(bound), tonumber(age), tonumber(least)
  return function(task, record)
    if bound and tonumber(task.id) >= bound then return nil end
    if age and Call.now - task.created < age then return nil end
    if least and task.attempts < least then return nil end
    if lane ~= '' and '=' .. Lanes.name_of(task) ~= lane then return nil end
    if key ~= '' and task.key ~= key then return nil end
    if wanted ~= '' then
      local kind, reason = kind_of(task.reason)
      if kind ~= wanted and reason ~= wanted then return nil end
    end
    if part ~= '' and not find(task.value, part, task.body, true) then return nil end
    if name ~= '' and not calls_function(task, name) then return nil end
    if bare == '' then return record or Entry.encode(task) end
    return Entry.encode_facts(task) .. sub(task.value, 1, 8)
  end, name ~= '' and 20 or part ~= '' and 8 or 1
end

-- One task or a few ------------------------------------------------------------------------------------------------------

-- Look at a task.
-- ARGV  6 its id, 7 'c' and the moment of its put, 't' and the number of a take of this session, or '' (any task with
--       that id), 8 '1': without its data
-- reply  the task as `Entry.encode` encodes it, or the kept done task
function Reads.peek(args)
  local task = Entry.find_expected(args[6], args[7] or '')
  if task then return Entry.encode(task, (args[8] or '') ~= '') end
  return Done.encode(args[6], args[7] or '') or redis.error_reply(NOT_FOUND)
end

-- Look at several tasks.
-- ARGV  6 the required state ('': any), 7 a filter, 8 a key ('': none), 9… their ids, a bounded number. With a key, only
--       the task that has it is read
-- reply  {the number of ids that were read}, and each task that exists and passes the filter, as `filter_of` says
function Reads.peek_many(args)
  if args[8] ~= '' then args[9] = call('HGET', Call.keys.keys, args[8]) or nil end
  local found, size, n, accept, weight = { 0 }, 0, 9, Reads.filter_of(args[7])
  while n <= #args and size < Call.BYTES do
    local task = Entry.find(args[n])
    if task and (args[6] == '' or task.state == args[6]) then
      found[#found + 1] = accept(task)
    end
    size = size + (task and #task.value * weight or 0)
    n = n + 1
  end
  found[1] = n - 9
  return found
end

-- Lists ------------------------------------------------------------------------------------------------------------------

-- Return the next places of an index after `at` ('': the first ones); `back`: in the reverse order.
local function places_after(index, at, most, back)
  if back then
    return call('ZRANGE', index, at == '' and '+' or '(' .. at, '-', 'BYLEX', 'REV', 'LIMIT', 0, most)
  end
  return call('ZRANGEBYLEX', index, at == '' and '-' or '(' .. at, '+', 'LIMIT', 0, most)
end

-- The same for ':due', where a place is the moment, a space and the member. Many tasks may be due at one moment.
local function due_after(at, most, back)
  local due = Call.keys.due
  local first, space = 0, find(at, ' ', 1, true)
  if space then first = Lists.count_before(due, sub(at, 1, space - 1), sub(at, space + 1), not back) end
  local final = first + most - 1
  if back then
    final = (space and first or call('ZCARD', due)) - 1
    first = math.max(final - most + 1, 0)
  end
  local found, places = final >= first and call('ZRANGE', due, first, final, 'WITHSCORES') or {}, {}
  local count = #found / 2
  for n = 1, count do places[back and count + 1 - n or n] = found[2 * n] .. ' ' .. found[2 * n - 1] end
  return places
end

-- The same for ready tasks in a list. It contains stale ids. A task that was released has its place in ':back', and
-- may be in the list as well.
local function listed_after(at, most)
  local ready, newest_first = Call.keys.ready, Call.plan.newest_first
  local first = at == '' and 0 or Lists.search(0, call('LLEN', ready), function(n)
    return place({ id = call('LINDEX', ready, newest_first and -1 - n or n) }) <= at
  end)
  local back, places = places_after(Call.keys.back, at, most), {}
  local start = newest_first and -first - most or first
  local ids = call('LRANGE', ready, start, start + most - 1)
  local n, m = 1, 1
  while #places < most and (ids[n] or back[m]) do
    local id = ids[newest_first and #ids + 1 - n or n]
    local its = id and place({ id = id })
    if back[m] and (not its or back[m] <= its) then
      if back[m] == its then n = n + 1 end
      its, m = back[m], m + 1
    else
      n = n + 1
    end
    places[#places + 1] = its
  end
  return places
end

local function places_of(state, at, most, back)
  local plan = Call.plan
  if state == '~' then return plan.timed and due_after(at, most, back) or {} end
  if state == '!' then return places_after(Call.keys.buried, at, most, back) end
  if plan.order == 'list' then return listed_after(at, most) end
  return places_after(Call.keys.ready, at, most, back)
end

-- Call `act` for the tasks of a state at some places. Return the place after which to continue; '': the end, because
-- there are less than `most` places.
local function each_at(places, most, state, weight, act)
  local size = 0
  for n, at in ipairs(places) do
    -- A place that is shorter than an id is damaged: `repair` removes it.
    local task = #at >= 6 and Entry.find(state == '~' and unpack_struct('>I6', at, #at - 5) or id_at(at))
    size = size + (task and #task.value * weight or 0)
    if task and task.state == state then act(task) end
    if n == most or (size >= Call.BYTES and n < #places) then return at == '' and '\0' or at end
  end
  return ''
end

-- List the tasks of a state, in the order in which they leave it.
-- ARGV  6 the position to continue at, returned by an earlier call, 7 the maximum number, bounded, 8 the state: ready
--       (without lanes), delayed or buried, 9 for a first call the id of the task after which to begin ('': at the
--       start), 10 a filter, 11 '1': in the reverse order, not for ready tasks in a list
-- reply  {the position to continue at; '': the end}, each task as `filter_of` says, and the id of the next put
function Reads.by_state(args)
  local at, most, state = args[6], tonumber(args[7]), args[8]
  local back, accept, weight = args[11] == '1', Reads.filter_of(args[10])
  if at == '' and args[9] ~= '' then
    local task = Entry.find(args[9])
    if not task then return redis.error_reply(NOT_FOUND) end
    at = state == '~' and format('%.0f ', task.state == '~' and task.due or 0) .. struct.pack('>I6', task.id) or place(task)
  end
  local found = { '' }
  found[1] = each_at(places_of(state, at, most, back), most, state, weight, function(task)
    found[#found + 1] = accept(task)
  end)
  found[#found + 1] = Call.next
  return found
end

-- Return the ids of all tasks from `first` on, upwards if `way` is 1, downwards if it is -1.
local function sorted_ids(first, way)
  local ids = {}
  for _, id in ipairs(call('HKEYS', Call.keys.tasks)) do
    if (id - first) * way >= 0 then ids[#ids + 1] = tonumber(id) end
  end
  table.sort(ids, function(a, b) return (b - a) * way > 0 end)
  return ids
end

-- List tasks in the order of their ids.
-- ARGV  6 the id at which to begin, 7 the maximum number, bounded, 8 'r': ready tasks, '': any, 9 '=' and a lane, '':
--       any, 10 a filter, 11 '1': in the reverse order; then 6 is the id below which to begin, '': at the last one
-- reply  {ARGV 6 of the next call; 0: the end}, each task as `filter_of` says, and the id of the next put
function Reads.tasks(args)
  local K, most, state, lane, back = Call.keys, tonumber(args[7]), args[8], args[9], args[11] == '1'
  local accept, weight = Reads.filter_of(args[10])
  local first = back and (args[6] == '' and Call.next or args[6]) - 1 or tonumber(args[6])
  local way = back and -1 or 1
  -- True if a stored task may belong to the lane: this excludes most others before they are decoded.
  local named = Entry.text(sub(lane, 2))
  local function may_be(value)
    if lane == '' or (lane == '=nil' and byte(value, 1) % 128 < 64) then return true end
    return find(sub(value, 1, 32 + #named), named, 9, true)
  end
  local oldest, ids, last = 0, nil
  if call('HLEN', K.tasks) <= 1000 then
    ids = sorted_ids(first, way)
    last = #ids
  else
    -- Ids below `oldest` do not exist.
    oldest = tonumber(call('HGET', Call.key, 'oldest') or 0)
    if not back then first = math.max(first, oldest) end
    last = math.min(5000, back and first - oldest + 1 or Call.next - first)
  end
  local found, looked, size, n = { 0 }, 0, 0, 0
  -- Limit the skipped tasks as well: they cost nearly as much as the others.
  while n < last and #found <= most and looked < 250 and size < Call.BYTES do
    -- Read small tasks by the hundred, with fewer commands.
    local step = looked > 0 and size < 1000 * looked * weight and 100 or 20 / weight
    local some, there, values = {}, {}, {}
    for at = n + 1, math.min(n + step, last) do some[#some + 1] = ids and ids[at] or first + (at - 1) * way end
    local read_values = call('HMGET', K.tasks, unpack(some))
    for at = 1, #some do
      if read_values[at] then there[#there + 1], values[#values + 1] = some[at], read_values[at] end
    end
    n = n + #some
    local scores = #there > 0 and call('ZMSCORE', K.taken, unpack(there))
    for at = 1, #there do
      local value, score = values[at], scores[at]
      looked, size = looked + 1, size + #value * weight
      if (state == '' or (not score and byte(value, 1) % 4 == 0)) and may_be(value) then
        local task = Entry.read(there[at], value)
        if lane == '' or '=' .. Lanes.name_of(task) == lane then
          if score then Entry.set_taken(task, score + 0) end
          if Call.plan.timed then task.due = Entry.due_of(task.id) end
          found[#found + 1] = accept(task)
        end
      end
      if #found > most or size >= Call.BYTES then
        found[1] = back and there[at] or there[at] + 1
        found[#found + 1] = Call.next
        return found
      end
    end
  end
  local following = ids and ids[n + 1] or not ids and first + n * way
  if following and (ids or (following >= oldest and following < tonumber(Call.next))) then
    found[1] = back and following + 1 or following
  end
  found[#found + 1] = Call.next
  return found
end

-- Count buried tasks by the kinds of their reasons.
-- ARGV  6 the place after which to begin ('': the start), 7 the maximum number of tasks, bounded
-- reply  {the place after which to continue; '': the end}, and each kind with its number of tasks
function Reads.reasons(args)
  local most, counts = tonumber(args[7]), {}
  local found = { each_at(places_after(Call.keys.buried, args[6], most), most, '!', 1, function(task)
    local kind = kind_of(task.reason)
    counts[kind] = (counts[kind] or 0) + 1
  end) }
  for kind, count in pairs(counts) do
    found[#found + 1], found[#found + 2] = kind, count
  end
  return found
end

-- Figures ----------------------------------------------------------------------------------------------------------------

local COUNTERS = {
  'next', 'takes', 'acks', 'delayed', 'calls:release', 'calls:touch', 'calls:bury', 'calls:kick', 'calls:delete',
  'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put',
}

-- Return the figures of the tube `Call.key`, as for `statistics`. `paused`: the end of a pause; `most`: as for
-- `Waiting.list`.
local function figures(paused, most)
  local K = Call.keys
  return {
    call('HLEN', K.tasks), call('ZCARD', K.taken), call('ZCARD', K.buried), call('HMGET', Call.key, unpack(COUNTERS)),
    Waiting.list(K.waiting, most), paused, call('ZCOUNT', K.ended, format('(%.0f', Call.now), '+inf'),
  }
end

-- Count the tasks of a tube, its calls, and its waiters.
-- reply  {tasks, taken tasks, buried tasks, a list of counters of the meta hash, the waiters (see `Waiting.list`),
--        the end of a pause, the number of kept done tasks}
function Reads.statistics()
  return figures(call('HGET', Call.key, 'paused'), 1000)
end

-- Collect the figures of some tubes for a monitor. It belongs to no session and changes nothing: due tasks that were
-- not moved yet are counted in their stored state.
-- KEYS[1]  the meta hash of the first tube
-- ARGV  1 the time in microseconds ('': the server's), 2… the meta hashes of all tubes, a bounded number
-- reply  {the time, and for each tube nil if it does not exist, or {driver, options, the figures as for statistics, the
--        number of live sessions, of lanes, of lanes in cooldown or blocked or without their full burst, the first
--        due time}, or {the error of this tube}}
function Reads.overview(args)
  Call.now = Call.time(args[1])
  local later, most = format('(%.0f', Call.now), math.floor(5000 / #args)
  local function figures_of(key)
    Call.open(key)
    local K = Call.keys
    local driver, options, paused = unpack(call('HMGET', key, 'driver', 'options', 'paused'))
    if not driver then return call('EXISTS', key) == 1 and { 'it has no driver' } end
    return {
      driver, options, figures(paused, most),
      call('ZCOUNT', K.leases, later, '+inf'), call('HLEN', K.lanes), call('ZCOUNT', K.cooldowns, later, '+inf'),
      call('ZRANGE', K.due, 0, 0, 'WITHSCORES')[2] or false,
    }
  end
  local seen = { Call.now }
  for n = 2, #args do
    local done, about = pcall(figures_of, args[n])
    if not done then
      -- Before Redis 7 an error is a string.
      local why = type(about) == 'table' and about.err or tostring(about)
      -- Report a key of another type for this tube alone; any other error fails the whole call.
      if not find(why, 'WRONGTYPE', 1, true) then return redis.error_reply(why) end
      about = { why }
    end
    seen[n] = about
  end
  return seen
end

-- Count tasks by their due times.
-- ARGV  6… microseconds from now, ascending
-- reply  the number of tasks that are due before the first moment, between each two of them, and from the last on
function Reads.due(args)
  local counts, since = {}, '-inf'
  for n = 6, #args + 1 do
    local to = args[n] and format('%.0f', Call.now + args[n])
    counts[#counts + 1] = call('ZCOUNT', Call.keys.due, since, to and '(' .. to or '+inf')
    since = to
  end
  return counts
end

-- Find the ready task with the smallest id.
-- ARGV  6 the id at which to begin ('': the smallest possible id)
-- reply  nil if no task is ready; the age of the task in microseconds, as a string; or the id at which to continue
function Reads.oldest(args)
  local K, next_id = Call.keys, tonumber(Call.next)
  local ids = call('HLEN', K.tasks) <= 2000 and sorted_ids(tonumber(args[6]) or 0, 1)
  -- Every task, present or future, has an id of at least `known`.
  local known = not ids and tonumber(call('HGET', Call.key, 'oldest') or 0)
  local first = tonumber(args[6]) or known
  local last = ids and #ids or math.min(5000, next_id - first)
  local after, gone, size, age = not ids and first + last < next_id and first + last, first, 0, nil
  for n = 1, last do
    local id = ids and ids[n] or first + n - 1
    if size >= Call.BYTES then
      after = id
      break
    end
    local value = call('HGET', K.tasks, id)
    if not value then
      if gone == id then gone = id + 1 end
    elseif byte(value, 1) % 4 == 0 and not call('ZSCORE', K.taken, id) then
      age = format('%.0f', math.max(Call.now - unpack_struct('>I7', value, 2), 0))
      break
    end
    size = size + (value and #value or 0)
  end
  -- A read-only client continues without storing this.
  local may = redis.acl_check_cmd
  if known and first == known and gone > known and (not may or may('HSET', Call.key, '', '')) then
    redis.pcall('HSET', Call.key, 'oldest', gone)
  end
  return age or after
end

-- List some of the lanes, or one lane.
-- ARGV  6 the cursor; 0: the beginning, 7 the lane (optional)
-- reply  {the next cursor (0: the end), and for each lane: its name, its ready tasks, its taken tasks, the end of its
--        cooldown or block (0: none), its interval in microseconds, its max_in_flight, its capacity, the end of its
--        block (0: none), its burst, its weight, the reason of the block ('': none) and the moment of the put of its next task
--        (-1: none)}
function Reads.lanes(args)
  local K, lane = Call.keys, Lanes.current
  local page = args[7] and { '0', { args[7], '' } } or call('HSCAN', K.lanes, args[6], 'COUNT', 200)
  local seen = { page[1] }
  for n = 1, #page[2], 2 do
    local rate = Lanes.read_limited(page[2][n])
    local number = lane.key and Lanes.number_of(lane.key)
    local ready = number and call('ZLEXCOUNT', K.behind, '[' .. lane.key, '(' .. struct.pack('>I5', number + 1)) or 0
    local interval, burst = RateLimits.interval_of(rate)
    local first = lane.head or (ready > 0 and Lanes.next_in_lane(lane.key))
    local value = first and call('HGET', K.tasks, id_at(first))
    if lane.head then ready = ready + 1 end
    local blocked = rate.blocked > Call.now
    local facts = {
      lane.name, ready, rate.taken, rate.free == 0 and rate.cooldown or 0, interval,
      rate.most > 0 and rate.most or RateLimits.of_tube().most,
      rate.capacity >= 0 and rate.capacity or Call.plan.lane_capacity,
      blocked and rate.blocked or 0, burst, math.max(rate.weight, 1), blocked and rate.reason or '', value and unpack_struct('>I7', value, 2) or -1,
    }
    for _, fact in ipairs(facts) do seen[#seen + 1] = fact end
  end
  return seen
end

return Reads
