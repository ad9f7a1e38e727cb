-- The checks of `tubes check` and `repair`: the invariants between the tasks of a tube and the keys that index them. The
-- stored tasks are the truth, together with ':taken' for tasks stored as ready; all other keys follow from them.
--
-- A check needs no session, because a damaged tube may refuse to open one.
--
-- KEYS[1]  the tube's meta hash
-- ARGV[1]  '1': repair problems; '': only report them
-- ARGV[2]  the time in microseconds; '': the server's
-- ARGV[3…] the arguments of the check
local Call = require 'call'
local Done = require 'done'
local Entry = require 'entry'
local Lanes = require 'lanes'
local Lists = require 'lists'
local Pending = require 'pending'
local Plan = require 'plan'
local RateLimits = require 'rate_limits'
local Ready = require 'ready'

local call = redis.call
local pack = struct.pack
local byte = string.byte
local sub = string.sub
local match = string.match
local format = string.format
local place, id_at = Ready.place, Ready.id_at

local Checks = {}
-- True if problems are repaired, and the problems: a kind and its subject, alternating.
local repairs, found

-- Record a problem: its kind and its subject. Return true if the check should repair it.
local function note(kind, about)
  found[#found + 1], found[#found + 2] = kind, about
  return repairs
end

-- Start a check that needs the driver. Return an error reply if the tube does not exist.
local function begin(args)
  repairs, found = args[1] == '1', {}
  Call.now, Call.args = Call.time(args[2]), args
  Call.soonest, Call.listening, Call.session, Call.filling = math.huge, false, -1, false
  local driver, options
  driver, options, Call.born, Call.next, Call.lanes, Call.rate_limits, Call.filled, Call.strays = unpack(
    call('HMGET', Call.key, 'driver', 'options', 'born', 'next', 'lanes', 'rate_limits', 'filled', 'strays'))
  if not Call.born then return redis.error_reply(Call.TUBE_GONE) end
  Call.plan, Call.names, Call.values = Plan.of(driver, options), false, {}
end

-- Tasks --------------------------------------------------------------------------------------------------------------------

-- Return the number that an id stands for, or nil if it is not an id.
local function id_of(words)
  local id = match(words, '^%d+$') and #words <= 15 and tonumber(words)
  return id and id < 281474976710656 and format('%.0f', id) == words and id or nil
end

-- True if a text is UTF-8. Lone surrogates are valid, as in Python's strings.
local function is_text(words)
  if not string.find(words, '[\128-\255]') then return true end
  words = string.gsub(words, '[\194-\223][\128-\191]', ' ')
  words = string.gsub(words, '\224[\160-\191][\128-\191]', ' ')
  words = string.gsub(words, '[\225-\239][\128-\191][\128-\191]', ' ')
  words = string.gsub(words, '\240[\144-\191][\128-\191][\128-\191]', ' ')
  words = string.gsub(words, '[\241-\243][\128-\191][\128-\191][\128-\191]', ' ')
  words = string.gsub(words, '\244[\128-\143][\128-\191][\128-\191]', ' ')
  return not string.find(words, '[\128-\255]')
end

-- True if all texts of a task are valid, including its context.
local function has_texts(task)
  for _, words in ipairs({ task.key or '', task.reason or '', task.lane or '' }) do
    if not is_text(words) then return false end
  end
  if task.reason and not string.find(task.reason, '^%x%x') then return false end
  local context, at, count = task.context or '', 1, 0
  while at <= #context do
    local words
    words, at = Entry.text_at(context, at)
    if at > #context + 1 or not is_text(words) then return false end
    count = count + 1
  end
  return count % 2 == 0
end

local function read_valid(id, value)
  local task = Entry.read(id, value)
  return task.body <= #value + 1 and has_texts(task) and place(task) and task
end

-- Parse a task as `Entry.read` does, and set its score if it is taken. nil: this driver could not have written it.
local function stored_task(id, value)
  local plan, flags = Call.plan, #value >= 8 and byte(value, 1)
  if not flags or flags % 4 == 3 then return nil end
  if not plan.timed and (flags % 2 >= 1 or flags % 64 >= 16) then return nil end
  if not plan.pri and flags % 16 >= 8 then return nil end
  if not plan.lane and flags % 128 >= 64 then return nil end
  local reads, task = pcall(read_valid, id, value)
  if not reads or not task then return nil end
  task.score = call('ZSCORE', Call.keys.taken, id)
  if task.score and task.state == 'r' then task.state = 't' end
  return task
end

-- Return the task with an id, or nil if it does not exist or cannot be read.
local function task_of(id)
  local name = id and format('%.0f', id)
  local value = name and Pending.get(Call.keys.tasks, name)
  return value and stored_task(name, value)
end

-- Return the task whose id is in a place, if that is its correct place.
local function task_at(at)
  if #at < 6 then return nil end
  local task = task_of(id_at(at))
  return task and place(task) == at and task
end

-- Lanes --------------------------------------------------------------------------------------------------------------------

-- Read the record of a lane as a rate, and make it the current lane. Return nil without a record, and false if it is invalid.
local function lane_of(name)
  local reads, rate = pcall(Lanes.read_limited, name)
  if not reads then return false end
  local record = Lanes.current.record
  if not record then return nil end
  if byte(record, 1) == 255 then
    -- The last one or two fields, or all but the first ones, may be missing.
    local count = select('#', cmsgpack.unpack(sub(record, 2)))
    if not Call.rate_limits or (count ~= RateLimits.FEW and count < RateLimits.CAPACITY - 1) then return false end
    for field, value in pairs(RateLimits.new()) do
      if type(rate[field]) ~= type(value) or rate[field] ~= rate[field] then return false end
    end
  else
    -- The size of the place behind the number or byte 254.
    local is_numbered = byte(record, 1) ~= 254
    local size = #record - (is_numbered and 5 or 1)
    if size < 6 and not (is_numbered and size == 0) then return false end
  end
  local has_number = #rate.key == 5 and Lanes.number_of(rate.key) < 549755813888
  local is_right = (rate.key == '' or has_number) and (rate.head == '' or #rate.head >= 6)
  return is_right and rate.taken >= 0 and rate.cooldown >= 0 and rate
end

-- True if a lane offers the correct task, and if a lane without an offer still needs its record.
local function is_lane_right(name, rate)
  if Call.rate_limits and rate.cooldown ~= tonumber(call('ZSCORE', Call.keys.cooldowns, name) or 0) then return false end
  local full = RateLimits.is_full(rate)
  local first = rate.key ~= '' and Lanes.next_in_lane(rate.key)
  if rate.head == '' then
    if first and not full then return false end
    return rate.taken > 0 or rate.cooldown > 0 or not RateLimits.is_default(rate)
  end
  local task = task_at(rate.head)
  if full or not task or task.state ~= 'r' or Lanes.name_of(task) ~= name or (first and Lists.precedes(first, rate.head)) then return false end
  return tonumber(call('ZSCORE', Call.keys.offers, rate.head) or nil) == rate.turn
end

-- Rewrite the record of a lane, and offer its best task. `taken`: the number of its taken tasks, if the record may be
-- wrong; `at`: the place of a ready task to add.
local function repair_lane(name, taken, at)
  local K, lane = Call.keys, Lanes.current
  if lane_of(name) == false then call('HDEL', K.lanes, name) end
  local rate = Lanes.read_limited(name)
  rate.taken = taken or rate.taken
  if Call.rate_limits then
    if rate.cooldown > 0 then call('ZADD', K.cooldowns, rate.cooldown, name) else call('ZREM', K.cooldowns, name) end
  end
  if not lane.key then
    Call.lanes = call('HINCRBY', Call.key, 'lanes', 1)
    lane.key = pack('>I5', Call.lanes)
  end
  if lane.head then
    call('ZREM', K.offers, lane.head)
    call('ZADD', K.behind, 0, lane.key .. lane.head)
    lane.head = false
  end
  if at then call('ZADD', K.behind, 0, lane.key .. at) end
  -- Remove places that do not belong to a ready task of this lane.
  local first = Lanes.next_in_lane(lane.key)
  while first do
    local task = task_at(first)
    if task and task.state == 'r' and Lanes.name_of(task) == name then break end
    call('ZREM', K.behind, lane.key .. first)
    first = Lanes.next_in_lane(lane.key)
  end
  if Call.rate_limits then
    Lanes.store_limited()
  elseif rate.taken > 0 then
    call('HSET', K.lanes, name, lane.key)
  else
    Lanes.store(true)
  end
end

-- The index of ready tasks --------------------------------------------------------------------------------------------------

-- Return the number of smaller ids in the list, which is sorted.
local function index_of(id)
  local ready = Call.keys.ready
  return Lists.search(0, call('LLEN', ready), function(n)
    local listed = tonumber(call('LINDEX', ready, n) or nil)
    return listed and listed < id
  end)
end

-- True if a ready task is in the right index. `listed`: the ids in a part of the list, if it was read.
local function is_indexed(task, listed)
  local K, order, at = Call.keys, Call.plan.order, place(task)
  if order == 'set' then return call('ZSCORE', K.ready, at) end
  if order == 'list' then
    if call('ZSCORE', K.back, at) then return true end
    if listed then return listed[task.id] end
    return call('LINDEX', K.ready, index_of(task.id + 0)) == task.id
  end
  local rate = lane_of(Lanes.name_of(task))
  if not rate then return false end
  if rate.head == at then return call('ZSCORE', K.offers, at) end
  return call('ZSCORE', K.behind, rate.key .. at)
end

-- Add a ready task to its index, like a released task.
local function index_again(task)
  if Call.plan.lane then repair_lane(Lanes.name_of(task), nil, place(task)) else Call.plan.index.push(task) end
end

-- The checks of tasks --------------------------------------------------------------------------------------------------------

local function check_key(task)
  local keys = Call.keys.keys
  local named = call('HGET', keys, task.key)
  if named == task.id or not note('key', task.key) then return end
  local other = named and task_of(id_of(named))
  if other and other.key == task.key then
    -- Two tasks have the key: this one loses it.
    task.key, task.key_ttl, task.state = nil, nil, task.state == 't' and 'r' or task.state
    Entry.write(task)
  else
    call('HSET', keys, task.key, task.id)
  end
end

local function check_due(task)
  local member, dead = pack('>I6', task.id), Entry.ttl_end(task)
  local due = tonumber(call('ZSCORE', Call.keys.due, member) or nil)
  local right = dead
  if task.state == '~' then
    right = due or Call.now
  elseif task.state == 't' and Call.plan.ends_taken then
    -- Tasks of a stream have no ttr: the lease of its session replaces it.
    if task.ttr then right = due and dead and math.min(due, dead) or due or dead end
  elseif task.state == 't' then
    right = task.ttr and due or nil
  end
  if due == right or not note('due', task.id) then return end
  if right then
    call('ZADD', Call.keys.due, format('%.0f', right), member)
    if right < (tonumber(call('HGET', Call.key, 'soonest') or nil) or math.huge) then
      call('HSET', Call.key, 'soonest', right)
    end
  else
    call('ZREM', Call.keys.due, member)
  end
end

-- Check a task. `listed`: the ids in a part of the list of ready tasks; `is_sorted`: the list is in order.
local function check_task(id, value, bounds, listed, is_sorted)
  local M, K, plan = Call.key, Call.keys, Call.plan
  if id + 0 >= bounds.next and note('next', id) then
    bounds.next = id + 1
    call('HSET', M, 'next', format('%.0f', bounds.next))
  end
  if id + 0 < bounds.oldest and note('oldest', id) then
    bounds.oldest = id + 0
    call('HSET', M, 'oldest', id)
  end
  local task = stored_task(id, value)
  if not task then
    if note('unreadable', id) then
      call('HSET', K.broken, id, value)
      call('HDEL', K.tasks, id)
      call('ZREM', K.taken, id)
    end
    return
  end
  if task.score and task.state ~= 't' and note('entry', 'taken ' .. id) then call('ZREM', K.taken, id) end
  if task.state == '!' and not call('ZSCORE', K.buried, place(task)) and note('stranded', id) then
    call('ZADD', K.buried, 0, place(task))
  end
  if task.state == 'r' and not is_indexed(task, listed) then
    -- A list that is out of order is searched from end to end.
    local there = plan.order == 'list' and not is_sorted and call('LPOS', K.ready, id)
    if not there and note('stranded', id) then index_again(task) end
  end
  if plan.lane and task.state == 't' then
    local name = Lanes.name_of(task)
    local about = lane_of(name)
    if not (about and about.taken > 0) and note('lane', name) then repair_lane(name, 1) end
  end
  if plan.timed then check_due(task) end
  if task.key then check_key(task) end
end

-- Check that each task is in the right indexes, and in no other of the lanes, keys and due times.
-- ARGV  3 '1': the list of ready tasks is out of order, 4… ids, in descending order, a bounded number
-- reply  {the number of ids that were checked, the problems}
function Checks.check_tasks(args)
  local is_sorted, listed = args[3] == '', nil
  if Call.plan.order == 'list' and is_sorted then
    -- The part of the list between the first and the last of these ids, unless it is much longer than they are.
    local first, last = index_of(args[#args] + 0), index_of(args[4] + 1)
    if last - first <= 5000 then
      listed = {}
      for _, id in ipairs(last > first and call('LRANGE', Call.keys.ready, first, last - 1) or {}) do listed[id] = true end
    end
  end
  local bounds = { oldest = tonumber(call('HGET', Call.key, 'oldest') or 0), next = Call.next + 0 }
  local size, looked = 0, 0
  for n = 4, #args do
    local value = call('HGET', Call.keys.tasks, args[n])
    if value then
      check_task(args[n], value, bounds, listed, is_sorted)
      size = size + #value
    end
    looked = looked + 1
    if size > 1000000 then break end
  end
  return { looked, found }
end

-- List the ids of tasks by HSCAN: each task that exists during the whole scan, some of them twice.
-- ARGV  3 the cursor ('0': the beginning)
-- reply  {the next cursor, the ids in one string, the problems: fields of ':tasks' that are not ids}
function Checks.check_ids(args)
  local tasks = Call.keys.tasks
  local cursor, names = Lists.scan_fields(tasks, args[3], 1000)
  local ids = {}
  for _, name in ipairs(names) do
    if id_of(name) then
      ids[#ids + 1] = name
    elseif note('unreadable', name) then
      call('HSET', Call.keys.broken, name, call('HGET', tasks, name))
      call('HDEL', tasks, name)
    end
  end
  return { cursor, table.concat(ids, ' '), found }
end

-- The checks of indexes ----------------------------------------------------------------------------------------------------

-- The entries of a key: one function for each key, which gets an entry and its value, and may report details.
local check = {}
local which, index, details

local function report(...)
  for _, word in ipairs({ ... }) do details[#details + 1] = word end
end

-- Record a wrong entry by its id.
local function note_place(at)
  return note('entry', which .. ' ' .. (#at >= 6 and format('%.0f', id_at(at)) or at))
end

local function places(state)
  return function(at)
    local task = task_at(at)
    if (not task or task.state ~= state) and note_place(at) then call('ZREM', index, at) end
  end
end

check.buried, check.back, check.ready = places('!'), places('r'), places('r')

-- Check a place in a lane: on offer, or behind with the number of the lane.
local function check_in_lane(entry, at, number)
  local task = task_at(at)
  local about = task and task.state == 'r' and lane_of(Lanes.name_of(task))
  local is_right = about and (number and about.key == number and about.head ~= at or not number and about.head == at)
  if is_right or not note_place(at) then return end
  call('ZREM', index, entry)
  -- Index a ready task again if this entry was its only one.
  if task and task.state == 'r' and not is_indexed(task) then index_again(task) end
end

check.offers = function(at) check_in_lane(at, at) end
check.behind = function(entry) check_in_lane(entry, sub(entry, 6), sub(entry, 1, 5)) end

function check.cooldowns(name, moment)
  local about = lane_of(name)
  if (not about or about.cooldown ~= moment + 0) and note('lane', name) then
    call('ZREM', index, name)
    if about then repair_lane(name) end
  end
end

function check.lanes(name, record)
  if byte(record, 1) == 255 and not Call.rate_limits and note('field', 'rate_limits') then
    Call.rate_limits = RateLimits.NONE
    call('HSET', Call.key, 'rate_limits', Call.rate_limits)
  end
  local about = lane_of(name)
  if about == nil then return end
  if (not is_text(name) or not about or not is_lane_right(name, about)) and note('lane', name) then
    repair_lane(name)
    about = lane_of(name)
  end
  if not about then return end
  local number = about.key ~= '' and Lanes.number_of(about.key) or 0
  if number > (Call.lanes or 0) + 0 and note('field', 'lanes') then
    Call.lanes = number
    call('HSET', Call.key, 'lanes', format('%d', number))
  end
  report(name, about.key, about.taken)
end

function check.taken(id, score)
  local task = task_of(id_of(id))
  if (not task or task.state ~= 't') and note('entry', 'taken ' .. id) then
    call('ZREM', index, id)
    return
  end
  if not task then return end
  score = score + 0
  if (score < 0 or score >= 9007199254740992 or score % 1 ~= 0) and note('entry', 'taken ' .. id) then
    -- The take of a session that does not exist, which is handled like an expired session.
    score = 0
    call('ZADD', index, score, id)
  end
  local timeless = Call.plan.timed and task.ttr and not call('ZSCORE', Call.keys.due, pack('>I6', id))
  report(id, format('%.0f', score), Lanes.name_of(task), timeless and 1 or 0)
end

function check.due(member)
  local id = #member == 6 and struct.unpack('>I6', member)
  local task = id and task_of(id)
  if not task and note('entry', 'due ' .. (id and format('%.0f', id) or member)) then call('ZREM', index, member) end
  if task and task.state == '~' then report(task.id) end
end

function check.keys(key, value)
  local task = task_of(id_of(value))
  if not (task and task.key == key) and note('key', key) then call('HDEL', index, key) end
end

function check.known(field, records)
  if (#records % 21 ~= 0 or not match(field, '^%d+$')) and note('entry', 'known ' .. field) then call('HDEL', index, field) end
end

-- Return the end of the time for which a done task is kept, if it can be read.
local function kept_until(id, record)
  local reads, _, ends, _, at = pcall(Done.read, record)
  return reads and id_of(id) and stored_task(id, sub(record, at)) and ends
end

function check.done(id, record)
  local ends = kept_until(id, record)
  local score = ends and call('ZSCORE', Call.keys.ended, pack('>I6', id))
  if not (score and score + 0 == ends) and note('entry', 'done ' .. id) then
    if ends then call('ZADD', Call.keys.ended, ends, pack('>I6', id)) else call('HDEL', index, id) end
  end
end

function check.ended(member)
  local id = #member == 6 and format('%.0f', struct.unpack('>I6', member))
  if not (id and call('HEXISTS', Call.keys.done, id) == 1) and note('entry', 'ended ' .. (id or member)) then
    call('ZREM', index, member)
  end
end

function check.waiting(process, about)
  local size, watched = match(about, '^0 (%d+) (%d+)$')
  local room = match(process, '^(.*):room$')
  if not (size and room) and not match(about, '^%d+ %d+$') then
    if note('waiting', process) then call('HDEL', index, process) end
  elseif size and tonumber(watched) > Call.now and call('ZSCORE', Call.keys.wanting, room) ~= size and note('waiting', process) then
    call('ZADD', Call.keys.wanting, size, room)
  end
end

function check.leases(token)
  local number = tonumber(match(token, '^s(%d+)%.') or nil)
  if not number or number >= 134217728 then
    if note('session', token) then call('ZREM', index, token) end
    return
  end
  if number > (tonumber(call('HGET', Call.key, 'sessions') or 0)) and note('field', 'sessions') then
    call('HSET', Call.key, 'sessions', number)
  end
  -- The field of the session is missing: end it, so that the next call of any session releases its tasks.
  if call('HEXISTS', Call.key, token) == 0 and tonumber(call('ZSCORE', index, token)) > Call.now and note('session', token) then
    call('ZADD', index, Call.now, token)
  end
  report(number)
end

function check.meta(field, value)
  local M = Call.key
  local session = match(field, '^a(s.+)%.[^.]+%.[^.]+$')
  if session then
    if call('HEXISTS', M, session) == 0 and note('answer', field) then call('HDEL', M, field) end
  elseif match(field, '^s%d+%.') then
    local named = 'u' .. match(value, '^%x*')
    -- A caller of the session has a minute to renew its lease.
    if not call('ZSCORE', Call.keys.leases, field) and note('session', field) then
      call('ZADD', Call.keys.leases, Call.now + 60000000, field)
    end
    if not call('HGET', M, named) and note('session', field) then call('HSET', M, named, field) end
  elseif match(field, '^u%x+$') and call('HEXISTS', M, value) == 0 and note('session', field) then
    call('HDEL', M, field)
  end
end

-- Check a part of the list of ready tasks: its ids ascend, even while tasks are added and removed.
local function check_list(args)
  local last, first, next_id = tonumber(args[5]) or -1, args[4] + 0, math.max(Call.next, args[6])
  if first > 0 and tonumber(call('LINDEX', index, first - 1) or nil) ~= last then first = index_of(last + 1) end
  local ids, wrong = call('LRANGE', index, first, first + 999), 0
  for n = 1, #ids do
    local id = id_of(ids[n])
    if id and id > last and id < next_id then
      last = id
    elseif note('entry', 'ready ' .. ids[n]) then
      call('LSET', index, first + n - 1, '')
      wrong = wrong + 1
    end
  end
  if wrong > 0 then call('LREM', index, 0, '') end
  return { #ids < 1000 and '0' or format('%d', first + 1000 - wrong), found, { format('%d', last) } }
end

-- The keys that are hashes, and the name of the meta hash.
local HASHES = {
  tasks = true, lanes = true, fill = true, keys = true, known = true, done = true, waiting = true, broken = true, meta = true,
}

-- Check some entries of a key: each task must exist, and belong in this key at this place.
-- ARGV  3 the key; 'meta': the sessions in the meta hash, 4 the cursor ('0': the beginning), 5 of a list the last id
--       that was checked, 6 the next id of the tube, if known
-- reply  {the next cursor ('0': the end), the problems, a list of details}. The details: of 'taken' id, score and lane
--        of each task, and 1 if the end of its ttr is missing; of 'lanes' name, number and taken tasks of each lane; of
--        'leases' the numbers of the sessions; of 'due' the ids of delayed tasks; of 'ready' as a list the last id
function Checks.check_index(args)
  which, details = args[3], {}
  index = which == 'meta' and Call.key or Call.keys[which]
  if which == 'ready' and Call.plan.order == 'list' then return check_list(args) end
  return { Call.scan(HASHES[which] and 'HSCAN' or 'ZSCAN', index, args[4], 100, check[which]), found, details }
end

-- Check the number of taken tasks of some lanes against all taken tasks.
-- ARGV  3 '': check the stored numbers, '1': give the lanes new numbers, 4… lanes
-- reply  the problems
function Checks.check_lanes(args)
  local K, taken = Call.keys, {}
  for n = 4, #args do taken[args[n]] = 0 end
  for _, id in ipairs(call('ZRANGE', K.taken, 0, -1)) do
    local task = task_of(id_of(id))
    local name = task and task.state == 't' and Lanes.name_of(task)
    if name and taken[name] then taken[name] = taken[name] + 1 end
  end
  for n = 4, #args do
    local name = args[n]
    local about = lane_of(name)
    if args[3] == '1' then
      if about and note('lane', name) then
        call('HDEL', K.lanes, name)
        if about.head ~= '' then call('ZREM', K.offers, about.head) end
        repair_lane(name, taken[name], about.head ~= '' and about.head)
      end
    elseif (about and about.taken or 0) ~= taken[name] and note('lane', name) then
      repair_lane(name, taken[name])
    end
  end
  return found
end

-- Check takes that look wrong, unless they have changed meanwhile. Takes of missing sessions are released by the next
-- call of any session; a ttr without an end starts again.
-- ARGV  3 'orphan' or 'due', 4… id and score of each
-- reply  the problems
function Checks.check_takes(args)
  local K = Call.keys
  for n = 4, #args, 2 do
    local score, due = call('ZSCORE', K.taken, args[n]), pack('>I6', args[n])
    if score and format('%.0f', score) == args[n + 1] then
      if args[3] == 'orphan' and note('orphan', args[n]) then
        call('ZADD', K.leases, Call.now, format('s%.0f.%s.', math.floor(score / Call.TAKES), Call.born))
      elseif args[3] == 'due' and Call.plan.timed and not call('ZSCORE', K.due, due) and note('due', args[n]) then
        local task = task_of(args[n] + 0)
        if task and task.ttr then call('ZADD', K.due, format('%.0f', Call.now + task.ttr), due) end
      end
    end
  end
  return found
end

-- Find the sessions that hold tasks for streams: the ttr of these tasks does not run.
-- ARGV  3 the cursor ('0': the beginning)
-- reply  {the next cursor, numbers of sessions}
function Checks.check_streams(args)
  local pattern = string.gsub(Call.key, '[%[%]?*\\]', '\\%0') .. ':stream:*'
  local some = call('SCAN', args[3], 'MATCH', pattern, 'COUNT', 1000)
  local sessions = {}
  for _, key in ipairs(some[2]) do
    if call('TYPE', key).ok == 'hash' then
      local about = call('HGETALL', key)
      for n = 1, #about, 2 do
        if match(about[n], '%.by$') then sessions[#sessions + 1] = tonumber(about[n + 1]) end
      end
    end
  end
  return { some[1], sessions }
end

-- The counters that change with each call that moves tasks.
local COUNTERS = {
  'takes', 'acks', 'calls:release', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr',
  'calls:put', 'delayed', 'strays',
}

-- Check the counters of a tube, after all other checks.
-- ARGV  3 the number of delayed tasks ('': unknown), 4 the stamp that this function returned before they were counted
--       ('': none)
-- reply  {a stamp, which changes with each of these calls; the problems}
function Checks.check_end(args)
  local M, K, plan = Call.key, Call.keys, Call.plan
  local tasks, taken, buried = call('HLEN', K.tasks), call('ZCARD', K.taken), call('ZCARD', K.buried)
  local counted = call('HMGET', M, 'next', unpack(COUNTERS))
  for n = 1, #counted do counted[n] = counted[n] or '' end
  local delayed = tonumber(call('HGET', M, 'delayed') or 0)
  local stamp = table.concat(counted, ' ')
  if plan.order == 'list' then
    local length, back = call('LLEN', K.ready), call('ZCARD', K.back)
    stamp = stamp .. ' ' .. table.concat({ tasks, taken, buried, length, back }, ' ')
    local right = 0
    if plan.timed then right = args[3] ~= '' and args[4] == stamp and tonumber(args[3]) or nil end
    if right and delayed ~= right and note('counter', 'delayed') then call('HSET', M, 'delayed', right) end
    local strays = tonumber(Call.strays or 0)
    if right then
      -- Entries of the list that are not ready tasks, and ready tasks that are not in the list.
      local stale = length - (tasks - taken - buried - right - back)
      if strays ~= stale + back and note('counter', 'strays') then call('HSET', M, 'strays', stale + back) end
    elseif (strays < back or strays > length + back) and note('counter', 'strays') then
      call('HSET', M, 'strays', length + back)
    end
  else
    local ready = plan.lane and call('ZCARD', K.offers) + call('ZCARD', K.behind) or call('ZCARD', K.ready)
    local right = tasks - taken - buried - ready
    if delayed ~= right and note('counter', 'delayed') then call('HSET', M, 'delayed', right) end
  end
  -- `soonest` must not be later than the first due time.
  local paused, stored = unpack(call('HMGET', M, 'paused', 'soonest'))
  local soonest = tonumber(paused or nil) or math.huge
  if soonest >= 1e18 then soonest = math.huge end
  local timers = { K.leases }
  if plan.timed then timers[2] = K.due end
  if Call.rate_limits then timers[#timers + 1] = K.cooldowns end
  for _, key in ipairs(timers) do
    soonest = math.min(soonest, tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or nil) or math.huge)
  end
  if soonest < (tonumber(stored or nil) or math.huge) and note('counter', 'soonest') then call('HSET', M, 'soonest', soonest) end
  if plan.lane and Call.counts_lanes() and repairs then require('tube').count_lanes() end
  return { stamp, found }
end

for name, act in pairs(Checks) do
  Checks[name] = function(args) return begin(args) or act(args) end
end

-- Check the types of a tube's keys and the fields of its meta hash, which all other checks depend on.
-- KEYS[1]  the meta hash
-- ARGV  1 '1': repair, 2 the time, 3 the type of ':ready', 4 its capacity, 5 the limits of its lanes ('': none), 6 the
--       highest id of a task ('': unknown; then the next id is not repaired), 7 the factor of the session number in the
--       scores of tasks, 8 the expected layout of its keys, 9 a new, unique name for its options
-- reply  the problems: a kind and its subject, alternating
function Checks.check_meta(args)
  local M, K = Call.key, Call.keys
  if call('HGET', M, 'layout') ~= args[8] then
    return redis.error_reply('LAYOUT ' .. M .. ' was made by another version of tubes, which stores tasks differently')
  end
  repairs, found = args[1] == '1', {}
  for _, part in ipairs(Call.PARTS) do
    local right = HASHES[part] and 'hash' or part == 'ready' and args[3] or 'zset'
    local there = call('TYPE', K[part]).ok
    if there ~= right and there ~= 'none' and note('type', part) then call('UNLINK', K[part]) end
  end
  -- Members sort by their bytes: all scores must be 0.
  for _, part in ipairs({ 'ready', 'back', 'behind', 'buried' }) do
    local key = K[part]
    while call('TYPE', key).ok == 'zset' do
      local some = call('ZRANGEBYSCORE', key, '-inf', '(0', 'LIMIT', 0, 1000)
      if #some == 0 then some = call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, 1000) end
      if #some == 0 then break end
      for _, at in ipairs(some) do
        if note('entry', part .. ' ' .. at) then call('ZADD', key, 0, at) end
      end
      if not repairs then break end
    end
  end
  local function is_count(words)
    return words and match(words, '^%-?%d+$') and #words <= 16
  end
  local function is_moment(words)
    local moment = tonumber(words)
    return moment and moment == moment
  end
  local function field(name, is_right, right)
    local words = call('HGET', M, name)
    if words and is_right(words) or not words and not right or not note('field', name) then return end
    if right then call('HSET', M, name, right) else call('HDEL', M, name) end
  end
  if call('HEXISTS', M, 'born') == 0 and note('field', 'born') then
    local born
    for _, token in ipairs(call('ZRANGE', K.leases, 0, -1)) do born = born or match(token, '^s%d+%.(%d+)') end
    call('HSET', M, 'born', born or format('%.0f', Call.time()))
  end
  local next_id = call('HGET', M, 'next')
  if not next_id or not match(next_id, '^%d+$') or #next_id > 14 then
    note('field', 'next')
    if repairs and tonumber(args[6]) then call('HSET', M, 'next', format('%.0f', args[6] + 1)) end
  end
  -- The number of a session must not be used twice.
  local may_have_sessions = call('TYPE', K.leases).ok == 'zset'
  if may_have_sessions and not is_count(call('HGET', M, 'sessions')) and note('field', 'sessions') then
    local highest = math.floor((call('ZRANGE', K.taken, 0, 0, 'REV', 'WITHSCORES')[2] or 0) / args[7])
    for _, token in ipairs(call('ZRANGE', K.leases, 0, -1)) do
      highest = math.max(highest, tonumber(match(token, '^s(%d+)%.') or 0))
    end
    call('HSET', M, 'sessions', format('%.0f', highest))
  end
  local highest
  if call('TYPE', K.lanes).ok == 'hash' and not is_count(call('HGET', M, 'lanes')) then
    -- Lanes with limits of their own that never had a task have no number.
    for _, record in ipairs(call('HVALS', K.lanes)) do
      local key = sub(record, 1, 5)
      if byte(record, 1) == 255 then
        local reads, first = pcall(cmsgpack.unpack, sub(record, 2))
        key = reads and type(first) == 'string' and first or ''
      end
      if #key == 5 and byte(key, 1) < 128 then highest = math.max(highest or 0, struct.unpack('>I5', key)) end
    end
  end
  field('lanes', is_count, highest and format('%.0f', highest))
  field('capacity', is_count, args[4])
  field('rate_limits', function(words)
    return match(words, '^%d+ [%d%.e+-]+ %d+ [01] [01] ?%d*$')
  end, args[5] ~= '' and args[5] or nil)
  field('bucket', function(words)
    return match(words, '^%-?%d+ %d+[ %d]*$')
  end)
  local listening = call('HGET', M, 'listening')
  local ends, version = match(listening or '0', '^(%S+) ?(%x*)$')
  if (not is_moment(ends) or #version > 32) and note('field', 'listening') then
    -- A version of the options that no caller knows: all callers read the options again.
    call('HSET', M, 'listening', '0 ' .. args[9])
  end
  for _, name in ipairs({ 'reapply', 'rounds', 'sessions', 'calls:touch', unpack(COUNTERS) }) do field(name, is_count) end
  for _, name in ipairs({ 'oldest', 'soonest', 'late', 'paused', 'waiting', 'filling' }) do field(name, is_moment) end
  return found
end

return Checks
