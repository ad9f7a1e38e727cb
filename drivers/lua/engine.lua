-- The state machine of tasks, as engine.py: `move` changes states by the table MOVES, and one function per method.
--
-- A function of a method gets the arguments of the call (ARGV) and returns its reply, and what `Call.finish` stores for
-- a repeated call, if it has changed something.
local Call = require 'call'
local Bucket = require 'bucket'
local Chance = require 'chance'
local Done = require 'done'
local Entry = require 'entry'
local Keys = require 'keys'
local Lanes = require 'lanes'
local Pending = require 'pending'
local Ready = require 'ready'
local Room = require 'room'
local Waiting = require 'waiting'

local call = redis.call
local pack = struct.pack
local unpack_struct = struct.unpack
local byte = string.byte
local sub = string.sub
local format = string.format
local TAKES, MOST_ATTEMPTS = Call.TAKES, Call.MOST_ATTEMPTS

local Engine = {}

-- The table of moves, as in moves.py: by the name of the move and the old state ('new': the task is new) the new state,
-- the event for listeners, the counters, and by how much they grow.
local function row(to, event, counts, by)
  return { to = to, event = event, counts = counts, by = by or 1 }
end

local function from(states, ...)
  local rows = {}
  for state in string.gmatch(states, '%S+') do rows[state] = row(...) end
  return rows
end

local MOVES = {
  put = from('new', 'r', 'put', { 'put' }),
  put_delayed = from('new', '~', 'put', { 'put' }),
  take = from('r', 't', 'take', { 'take' }),
  touch = from('t', 't', 'touch', { 'touch' }),
  ack = from('t', '-', 'delete', { 'ack' }),
  release = from('t', 'r', 'release', { 'release' }),
  release_delayed = from('t', '~', 'release', { 'release' }),
  -- The attempt does not count: nothing has failed.
  decline = from('t', 'r', 'release', {}),
  decline_delayed = from('t', '~', 'release', {}),
  -- The last attempt has failed.
  release_last = from('t', '!', 'bury', { 'release', 'bury' }),
  -- Undo a take whose caller left before it got the task.
  undo_take = from('t', 'r', 'release', { 'take' }, -1),
  -- Undo a put whose caller left before it got the result.
  undo_put = from('r ~', '-', 'delete', { 'put' }, -1),
  bury = from('r t ~', '!', 'bury', { 'bury' }),
  kick = from('! ~', 'r', 'kick', { 'kick' }),
  delete = from('r t ! ~', '-', 'delete', { 'delete' }),
  cancel = from('r t ! ~', '-', 'cancel', { 'delete' }),
  -- New data, place or times; a delay begins or ends.
  update = { r = row('r', 'update', {}), t = row('t', 'update', {}), ['!'] = row('!', 'update', {}), ['~'] = row('~', 'update', {}) },
  update_delayed = from('r ~', '~', 'update', {}),
  update_ready = from('~', 'r', 'update', {}),
  -- Moves by time.
  delay = from('~', 'r', 'delay', { 'delay' }),
  ttr = from('t', 'r', 'ttr', { 'ttr' }),
  ttr_delayed = from('t', '~', 'ttr', { 'ttr' }),
  ttr_last = from('t', '!', 'bury', { 'ttr', 'bury' }),
  ttl = from('r !', '-', 'ttl', { 'ttl', 'delete' }),
}
Engine.MOVES = MOVES

-- Count some moves of a row. Puts are counted by their ids.
local function count(counts, by)
  for n = 1, #counts do
    local name = counts[n]
    if name == 'take' or name == 'ack' then
      Call.increment(name .. 's', by)
    elseif name ~= 'put' or by < 0 then
      Pending.increment(Call.key, 'calls:' .. name, by)
    end
  end
end

Engine.count = count

-- Store the due time of a task after a move. `due`: the new one or nil; `had`: it may have one in ':due'.
local function set_due(task, due, had)
  if due then
    Pending.add(Call.keys.due, due, pack('>I6', task.id))
    Call.note_due(due)
  elseif had then
    Pending.remove(Call.keys.due, pack('>I6', task.id))
  end
  task.due = due
end

-- Leave the old state.
local function leave(task, was, to, order)
  local K = Call.keys
  if was == 't' then
    Pending.remove(K.taken, task.id)
    if Call.plan.lane then Lanes.leave_head(was) end
  elseif was == '!' then
    Pending.remove(K.buried, Ready.place(task))
  elseif was == '~' then
    Pending.increment(Call.key, 'delayed', -1)
  elseif was == 'r' then
    if to ~= 't' then order.pull(task) elseif Call.rate_limits then Lanes.leave_head(was) end
  end
end

-- Enter a new state. `name`: of the move.
local function enter(task, was, to, order, name)
  local K, plan = Call.keys, Call.plan
  if to == '-' then
    Pending.delete(K.tasks, task.id)
    if plan.lane and Call.counts_lanes() then Lanes.subtract(Lanes.name_of(task), 1) end
    if task.key then Keys.leave(task) end
    if task.keep_done and name ~= 'undo_put' then Done.add(task, sub(name, 1, 1)) end
  elseif to == 't' then
    if was == 'r' then
      if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
      task.take = Call.take
      if plan.token > 0 then Bucket.start(1) end
    end
    Pending.add(K.taken, task.owner * TAKES + task.take, task.id)
  elseif was == 'new' then
    Pending.set(K.tasks, task.id, task.value)
    if to == 'r' then order.append(task) end
  else
    Entry.write(task)
    if to == 'r' then order.push(task) end
  end
  if to == '!' then
    Pending.add(K.buried, 0, Ready.place(task))
  elseif to == '~' then
    Pending.increment(Call.key, 'delayed', 1)
  end
end

-- Set the due time that follows from the new state. `due`: the end of a delay or of a take; of a new task its due time.
local function update_due(task, was, to, due, changes)
  local plan = Call.plan
  if to == '-' then
    local had = task.ttl or task.ttr
    if was == 't' and not plan.ends_taken then had = task.ttr elseif was == '~' then had = true end
    if had then Pending.remove(Call.keys.due, pack('>I6', task.id)) end
    task.due = nil
    return
  end
  local dead = task.ttl and task.created + task.ttl
  if to == 't' then
    if plan.ends_taken and dead and (not due or dead < due) then due = dead end
  elseif to ~= '~' and was ~= 'new' then
    due = dead
    if was == 't' and not plan.ends_taken and due and due < Call.now then call('HSET', Call.key, 'late', Call.now) end
  end
  -- A ready task with a ttl is already in ':due' with this moment.
  if was == 'r' and not changes and to ~= '!' and due and due == dead then
    task.due = due
    return
  end
  set_due(task, due, was ~= 'new' and (task.ttl or task.ttr or was == '~' or (plan.has_buried_ttl and to == '!')))
end

-- Change the state of a task: with the three moves below the only place where a state changes. `due`: the moment when a
-- delay or a take ends; for a new task its own due time. `change`: changes the facts of the task between its old and its new state. Removals come
-- before additions, so a move is complete even if memory is full.
local function move(task, name, due, change)
  local was = task.state
  local to_row = MOVES[name][was] or error('no ' .. name .. ' from ' .. was)
  local to, plan = to_row.to, Call.plan
  local order = plan.index
  -- A touched task stays in its lane and in ':taken'.
  local stays = was == 't' and to == 't'
  local in_lane = plan.lane and not stays and (was == 'r' or was == 't' or to == 'r' or to == 't')
  if in_lane then Lanes.open(task, was, to) end
  if not stays then leave(task, was, to, order) end
  task.state = to
  if to == '!' and was ~= '!' then
    Entry.count_event(task, 2)
    Entry.add_failure(task, task.reason)
    -- Its ttl becomes buried_ttl, counted from now. As in `set_ttl`.
    if plan.has_buried_ttl then task.ttl = plan.buried_ttl and math.max(Call.now - task.created, 0) + plan.buried_ttl or nil end
  end
  if change then change(task) end
  if not stays then enter(task, was, to, order, name) end
  if plan.timed then update_due(task, was, to, due, change) end
  if in_lane then Lanes.close(task, was, to) end
  if was == 't' and (name == 'cancel' or name == 'delete' or name == 'bury') then Entry.notify_holder(task, to_row.event) end
  if Call.listening then Entry.publish(to_row.event, task) end
  count(to_row.counts, to_row.by)
end

Engine.move = move

-- The moves of most calls, written out because that takes a tenth less of a server's time: each does what `move` does for
-- its row.

-- Add a new task, whose flags say if it is delayed: `put` or `put_delayed`.
local function add(task, due)
  local plan, value = Call.plan, task.value
  local delayed = plan.timed and byte(value) % 2 == 1
  local in_lane = plan.lane and not delayed
  if in_lane then Lanes.open(task, 'new', 'r') end
  Pending.set(Call.keys.tasks, task.id, value)
  if delayed then Pending.increment(Call.key, 'delayed', 1) else plan.index.append(task) end
  if due and plan.timed then set_due(task, due) end
  if in_lane then Lanes.close(task, 'new', 'r') end
  if Call.listening then
    task.state, task.attempts = delayed and '~' or 'r', 0
    Entry.publish('put', task)
  end
end

Engine.add = add

-- Start a ready task of a tube without limits of lanes: `take`.
local function take(task, due)
  if Call.rate_limits then return move(task, 'take', due) end
  local plan = Call.plan
  task.state, task.take = 't', Call.take
  if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
  if plan.token > 0 then Bucket.start(1) end
  Pending.add(Call.keys.taken, task.owner * TAKES + task.take, task.id)
  if due or task.ttl or task.ttr then update_due(task, 'r', 't', due) end
  if Call.listening then Entry.publish('take', task) end
  Call.increment('takes')
end

-- End a taken task of a tube without limits of lanes: `ack`.
local function ack(task)
  if Call.rate_limits then return move(task, 'ack') end
  local plan, K = Call.plan, Call.keys
  if plan.lane then
    Lanes.open(task, 't', '-')
    Lanes.leave_head('t')
  end
  Pending.remove(K.taken, task.id)
  task.state = '-'
  enter(task, 't', '-', plan.index, 'ack')
  if plan.timed then update_due(task, 't', '-') end
  if plan.lane then Lanes.close(task, 't', '-') end
  if Call.listening then Entry.publish('delete', task) end
  Call.increment('acks')
end

-- Due events -----------------------------------------------------------------------------------------------------------

-- Return the delay before the next attempt, in microseconds.
local function backoff_delay(task)
  local backoff = Call.plan.backoff
  local delays = backoff.delays
  local span = delays[math.min(math.max(task.attempts, 1), #delays)]
  return Chance.apply_jitter(span, -backoff.jitter, backoff.seed, task.id, task.attempts)
end

-- End the delay, the ttr or the ttl of a task at `Call.now`; `due`: its due time.
function Engine.time_out(id, due)
  local task = Entry.find(format('%d', id))
  if not task then return end
  if task.state == '~' then
    move(task, 'delay')
  elseif task.state == 't' then
    local dead = Entry.ttl_end(task)
    Entry.count_event(task, 4)
    local ended_by_ttl = Call.plan.ends_taken and dead and dead <= due
    if not ended_by_ttl and Entry.is_last(task) then
      task.reason = '00max_attempts: ttr'
      move(task, 'ttr_last')
    elseif not ended_by_ttl and Call.plan.backoff then
      local span = backoff_delay(task)
      Entry.extend_ttl(task, span)
      move(task, 'ttr_delayed', Call.now + span)
    else
      move(task, 'ttr')
    end
  else
    move(task, 'ttl')
  end
end

-- End a task that was released, or whose ttl was shortened, before the reply if it has expired.
local function expire(task)
  if (task.state == 'r' or task.state == '!') and task.ttl and Call.plan.timed and Entry.ttl_end(task) <= Call.now then
    move(task, 'ttl')
  end
end

-- Put --------------------------------------------------------------------------------------------------------------------

-- Return the next id as a string. Refuse any other value that a client may have written: it would be stored as an id.
function Engine.next_id()
  local next_id = Call.next
  if #next_id > 14 or string.find(next_id, '%D') then error('the next id is ' .. next_id) end
  return next_id
end

-- Add a task that has no key.
-- ARGV  6 its flags, 7 the rest of its header and its data, 8 microseconds until its due time ('': none), 9 its
--       priority ('': 0), 10 its lane ('': none), 11 '' (unused), 12 how many callers in
--       the process wait if the tube is full ('': none), 13 the process
-- reply  the moment of the put in 7 bytes, then the id; nil if the tube is full
function Engine.put(args)
  local plan, flags, span, pri = Call.plan, args[6], args[8], args[9]
  -- The flags show if it has a lane, because a lane may be called ''.
  local lane = byte(flags) % 128 >= 64 and (args[10] or '') or nil
  local counts = plan.lane and Call.counts_lanes()
  if plan.bounded or counts then
    local lanes = counts and Room.lanes()
    if lanes then lanes.add(lane or 'nil', 1) end
    local room = Room.check(1, args[12], args[13], lanes)
    if room ~= true then return room end
  end
  local id, now = Engine.next_id(), Call.now
  local created = pack('>I7', now)
  local task = { id = id, value = flags .. created .. args[7], created = now, pri = pri and tonumber(pri), lane = lane }
  -- If the rank fails for this task, it must fail before the first write.
  if plan.rank then Ready.place(task) end
  Call.set('next', id + 1)
  if counts then Lanes.add_counts({ [lane or 'nil'] = 1 }) end
  add(task, span and span ~= '' and now + span)
  if args[12] and args[12] ~= '' then Waiting.stop_waiting_for_room(args[13]) end
  local result = created .. id
  return result, result
end

-- Undo puts whose caller left before the reply arrived, except for tasks that were taken since.
-- ARGV  6… for each task its id, and 'c' and the moment of its put
-- reply  nothing
function Engine.undo_put(args)
  for n = 6, #args, 2 do
    if Call.is_spent() then return Call.stop_early() end
    local task = Entry.find_expected(args[n], args[n + 1])
    if task and not task.replaces and task.attempts == 0 and (task.state == 'r' or task.state == '~') then
      task.key_ttl = nil
      move(task, 'undo_put')
    end
  end
end

-- Take -------------------------------------------------------------------------------------------------------------------

-- Take a ready task that was popped, for `span` microseconds (nil: its ttr); a task without a ttr keeps this one. Return
-- its facts and its stored form.
function Engine.start(task, span)
  local ttr = Call.plan.timed and span or task.ttr
  if ttr and not task.ttr then
    task.ttr = ttr
    Entry.write(task)
  end
  task.owner = Call.session
  take(task, ttr and Call.now + ttr)
  return Entry.encode_facts(task), task.value
end

local function take_popped(id, span)
  if type(id) == 'number' then id = format('%d', id) end
  return Engine.start(Entry.read(id, call('HGET', Call.keys.tasks, id)), span)
end

-- Return the task that a repeated take has taken, if its caller still holds it.
local function taken_before(replayed, at)
  return #replayed >= at and Entry.find_held(unpack_struct('>I8', replayed, at), Call.take) or nil
end

-- Take the next task.
-- ARGV  6 how many callers in the process wait if no task can be taken ('': none), 7 the process, 8 '1' if the partition
--       has woken it, 9 as for take_task
-- reply  the task as `Entry.encode` encodes it, for a process that waits behind 8 bytes: when the next task can be taken
--        (1: now; 0: nothing is due); if no task can be taken, the next due time (0: none)
function Engine.take(args)
  local waits, id = args[6] and args[6] ~= ''
  if args[8] == '1' then Waiting.answer() end
  if Call.replayed then
    local task = taken_before(Call.replayed, 1)
    if task then return (waits and Waiting.outlook(args[7]) or '') .. Entry.encode_held(task) end
    -- Take nothing: a waiter sends its next take itself, and this request may come from an abandoned connection.
    if waits then id = false end
  end
  if id == nil then
    id = Call.plan.index.pop()
    if id == nil then return redis.error_reply('AGAIN call again') end
  end
  if not id then
    if waits then Waiting.wait_for_task(args[6], args[7]) end
    return Call.soonest or 0
  end
  local facts, value = take_popped(id, args[9] and tonumber(args[9]))
  return (waits and Waiting.outlook(args[7]) or '') .. facts .. value, facts
end

-- Take one task, regardless of the order.
-- ARGV  6, 7 as for `find_any`, 8 '', 9 the ttr of this take in microseconds ('': the ttr of the task)
-- reply  the task as `Entry.encode` encodes it; '' if it cannot be taken now
function Engine.take_task(args)
  if Call.replayed then
    local task = taken_before(Call.replayed, 1)
    return task and Entry.encode_held(task) or ''
  end
  local task = Entry.find_expected(args[6], args[7])
  if not task then return redis.error_reply('NOTFOUND there is no such task') end
  if task.state ~= 'r' or Ready.allowed(1) == 0 then return '' end
  if Call.plan.lane then
    if not Lanes.make_head(task) then return '' end
  else
    Call.plan.index.pull(task)
  end
  local facts, value = Engine.start(task, tonumber(args[9] or nil))
  return facts .. value, facts
end

-- Look at the next task to be taken.
-- reply  its priority and its id; '' if no task can be taken
function Engine.first()
  local order, id = Call.plan.index, false
  if Call.plan.order == 'list' then
    id = order.pop()
    if id then order.unpop({ id }, 1) end
    if id == nil then return redis.error_reply('AGAIN call again') end
  elseif Ready.allowed(1) > 0 then
    local at = call('ZRANGE', Call.keys[Call.plan.lane and 'offers' or 'ready'], 0, 0)[1]
    id = at and Ready.id_at(at) or false
  end
  if not id then return '' end
  id = format('%d', id)
  return (Entry.read(id, call('HGET', Call.keys.tasks, id)).pri or 0) .. ' ' .. id
end

-- Undo the take of a task whose caller left before it received the task.
local function undo_take(task)
  Bucket.undo_start(task)
  task.attempts, task.undone = task.attempts - 1, true
  move(task, 'undo_take')
end

-- Undo takes whose caller left before it received the tasks.
-- ARGV  6… for each task its id and the number of the take
-- reply  nothing
function Engine.undo_take(args)
  local undone
  for n = 6, #args, 2 do
    if Call.is_spent() then return Call.stop_early() end
    local task = Entry.find_held(args[n], args[n + 1])
    if task then
      undo_take(task)
      undone = ''
    end
  end
  return nil, undone
end

-- Cancel a take that was sent ahead and no longer has callers: undo it if it ran, and make it do nothing if it
-- arrives later.
-- ARGV  6 the number of its call, which has the same slot
-- reply  nothing
function Engine.disarm(args)
  local last = Call.values[2]
  local number = last and string.match(last, '^(%d+):') or ''
  if number > args[6] then return end
  if number == args[6] and #last > 24 then
    local task = Entry.find_held(unpack_struct('>I8', last, 18), format('%d', number % TAKES))
    if task then undo_take(task) end
  end
  return nil, ''
end

-- The end of a take -------------------------------------------------------------------------------------------------------

local NOT_TAKEN = 'NOTTAKEN this session does not have it'

-- Return the reply about a changed task and its text for a repeated call. ARGV 8 '1': without its data, which the caller
-- has.
local function reply_with(task, args)
  local reply = Entry.encode(task, (args[8] or '') ~= '')
  return reply, reply
end

-- Ack a task whose facts the caller has, if the session holds it by the take `number`: it has no key and is not kept.
-- `known`: '3': it may have a due time. Return true if it was held.
local function ack_known(id, number, known, lane)
  local score = call('ZSCORE', Call.keys.taken, id)
  if not score or score + 0 ~= Call.session * TAKES + number then return false end
  local task = { id = id, state = 't', attempts = 0, ttr = known == '3', lane = lane }
  if lane == 'nil' then task.lane = nil end
  ack(task)
  return true
end

-- True if the arguments of an ack say all that its move needs.
local function says_all(args)
  return (tonumber(args[7]) or -1) >= 0 and (args[8] == '1' or args[8] == '3') and not Call.listening
end

-- Ack a held task: it is done, and is removed from the tube.
-- ARGV  6 its id, 7 the number of the take by which the caller holds it ('': any; 'c' and the moment of the put: any
--       take of that task), 8 '1': the caller knows the data, and the task has no key; '2': the task has a key; '3': as
--       '1', and the task may have a due time, 9 its lane as ':lanes' stores it, if the caller knows that the task has
--       no key
-- reply  the task as `Entry.encode` encodes it; 1 if ARGV 7 is the number of a take and ARGV 8 is '1' or '3', unless a
--        listener is registered
function Engine.ack(args)
  if says_all(args) then
    if Call.replayed then return 1 end
    if not ack_known(args[6], tonumber(args[7]), args[8], args[9]) then return redis.error_reply(NOT_TAKEN) end
    return 1, '1'
  end
  if Call.replayed then return tonumber(Call.replayed) or Call.replayed end
  local task = Entry.find_held(args[6], args[7])
  if not task then return redis.error_reply(NOT_TAKEN) end
  ack(task)
  return reply_with(task, args)
end

-- Ack a held task, and store its result, which is kept as long as the task.
-- ARGV  6, 7, 8 as for ack, 9 the result
-- reply  the task as `Entry.encode` encodes it
function Engine.ack_with(args)
  local task = Entry.find_held(args[6], args[7])
  if not task then return redis.error_reply(NOT_TAKEN) end
  task.result = args[9]
  ack(task)
  return reply_with(task, args)
end

-- Ack a held task, and take the next one.
-- ARGV  6 to 9 the held task, as for ack
-- reply  '1' if it was held, else '0'; then the next task as `Entry.encode` encodes it, if there is one
function Engine.next(args)
  if Call.replayed then
    local done = sub(Call.replayed, 1, 1)
    local task = taken_before(Call.replayed, 2)
    return task and done .. Entry.encode_held(task) or done
  end
  local done = '0'
  if says_all(args) then
    if ack_known(args[6], tonumber(args[7]), args[8], args[9]) then done = '1' end
  else
    local task = Entry.find_held(args[6], args[7])
    if task then
      done = '1'
      ack(task)
    end
  end
  -- nil (too many stale ids) does not mean that the tube is empty: the caller sends a take.
  local id = Call.plan.index.pop()
  if not id then return done, done end
  local facts, value = take_popped(id)
  return done .. facts .. value, done .. facts
end

-- Release a held task: it returns to its place after `delay` microseconds ('': now; 'backoff': the delay of the tube's
-- backoff). After its last attempt it is buried instead, with the `reason` as it is stored (nil or '': release).
function Engine.release_one(task, delay, reason)
  if reason == '' then reason = nil end
  if Entry.is_last(task) then
    task.reason = reason or '00max_attempts: release'
    return move(task, 'release_last')
  end
  if reason then Entry.add_failure(task, reason) end
  local plan = Call.plan
  local span = delay == 'backoff' and plan.backoff and backoff_delay(task) or tonumber(delay) or 0
  if plan.timed and span > 0 then
    Entry.extend_ttl(task, span)
    move(task, 'release_delayed', Call.now + span)
  else
    move(task, 'release')
  end
end

-- Set a new priority: `pri` as an argument ('' or nil: unchanged).
local function pri_of(task, argument)
  local pri = Call.plan.pri and tonumber(argument or '')
  -- If the rank fails for this priority, it must fail before the first write.
  if pri and Call.plan.rank then Ready.place({ id = task.id, pri = pri, created = task.created }) end
  return pri
end

-- Release a held task.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready ('': at once; 'backoff': by the backoff of the tube),
--       10 the reason ('': none), 11 the worker, a line break and the traceback ('': unknown),
--       12 its priority ('': unchanged), 13 its data (absent: unchanged)
-- reply  as for ack
function Engine.release(args)
  local task = Entry.find_held(args[6], args[7])
  if not task then return redis.error_reply(NOT_TAKEN) end
  local pri = pri_of(task, args[12])
  if pri then task.pri = pri > 0 and pri or nil end
  if args[13] then Entry.set_data(task, args[13]) end
  task.trace = args[11]
  Engine.release_one(task, args[9], args[10])
  expire(task)
  return reply_with(task, args)
end

-- Return a held task to the tube as if it had not been taken: the attempt does not count, and a delay does not extend
-- its life.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready (0: at once)
-- reply  as for ack
function Engine.decline(args)
  local task = Entry.find_held(args[6], args[7])
  if not task then return redis.error_reply(NOT_TAKEN) end
  Bucket.undo_start(task)
  task.attempts = task.attempts - 1
  local span = tonumber(args[9])
  if Call.plan.timed and span > 0 then move(task, 'decline_delayed', Call.now + span) else move(task, 'decline') end
  expire(task)
  return reply_with(task, args)
end

-- Extend the ttr and the ttl of a held task permanently.
-- ARGV  6, 7, 8 as for ack, 9 microseconds
-- reply  as for ack
function Engine.touch(args)
  local task = Entry.find_held(args[6], args[7])
  if not task then return redis.error_reply(NOT_TAKEN) end
  local more = tonumber(args[9])
  task.due = Entry.due_of(task.id)
  if more > 0 then
    Entry.extend_ttl(task, more)
    if task.ttr then task.ttr = math.min(task.ttr + more, Call.LONGEST) end
    Entry.write(task)
    move(task, 'touch', task.due and math.min(task.due + more, Call.now + Call.LONGEST))
  end
  return reply_with(task, args)
end

-- Restart the ttr of a held task with this span; later takes use its own ttr.
-- ARGV  6, 7, 8 as for ack, 9 microseconds ('': its own ttr)
-- reply  as for ack
function Engine.set_ttr(args)
  local task = Entry.find_held(args[6], args[7])
  if not task then return redis.error_reply(NOT_TAKEN) end
  task.due = Entry.due_of(task.id)
  if task.ttr then move(task, 'touch', Call.now + (tonumber(args[9]) or task.ttr)) end
  return reply_with(task, args)
end

-- Extend the time of a held task that ends at `due` to at least `ends`; return its new due time, and true if its facts
-- have changed. If the ttl ends taken tasks, it is extended as well.
local function extend(task, due, ends)
  if not due or not ends or due >= ends then return due, false end
  local changes = Call.plan.ends_taken and task.ttl and Entry.ttl_end(task) < ends
  if changes then task.ttl = ends - task.created end
  return task.ttr and ends, changes
end

-- Extend the ttr of a held task to at least `span` from now. A task without ttr and ttl has no due time.
function Engine.renew(task, span)
  local before, ends = Entry.due_of(task.id), Call.now + span
  if not before or before >= ends then return end
  local due, changed = extend(task, before, ends)
  if changed then Entry.write(task) end
  move(task, 'touch', due)
end

-- Store facts in the context of a held task, and give it at least its own ttr from now on, as renew_many does.
-- ARGV  6, 7, 8 as for ack, 9 'c' and the moment of its put ('': unknown), 10… names and values
-- reply  as for ack; if the task was cancelled and is kept, the done task
function Engine.checkpoint(args)
  local task = Entry.find_held(args[6], args[7])
  if not task then
    local kept = Done.encode(args[6], args[9])
    if kept and sub(kept, 26, 26) == 'c' then return kept end
    return redis.error_reply(NOT_TAKEN)
  end
  task.due = Entry.due_of(task.id)
  local due = Call.plan.timed and extend(task, task.due, task.ttr and Call.now + task.ttr) or nil
  if args[10] then Entry.set_facts(task, args, 10) end
  Entry.write(task)
  move(task, 'touch', due)
  return reply_with(task, args)
end

-- Tasks in any state ---------------------------------------------------------------------------------------------------

-- Return the task with the id ARGV[6], in any state, whichever session holds it; or nil and the error reply.
-- ARGV  7 'c' and the moment of its put, 't' and the number of a take of this session, or '' (any task with that id)
local function find_any(args)
  local task = Entry.find_expected(args[6], args[7] or '')
  if task then return task end
  return nil, redis.error_reply('NOTFOUND there is no such task')
end

-- Bury a task, in any state.
-- ARGV  6, 7, 8 as for `find_any` and ack, 9 the reason ('': none), 10 the worker, a line break and the traceback ('': unknown),
--       11 the new priority ('': unchanged)
-- reply  as for ack
function Engine.bury(args)
  local task, missing = find_any(args)
  if not task then return missing end
  local pri = pri_of(task, args[11])
  if task.state ~= '!' then
    task.reason, task.trace = args[9] ~= '' and args[9] or nil, args[10]
    if task.state == 't' then Entry.count_event(task, 1) end
    move(task, 'bury', nil, function(buried)
      if pri then buried.pri = pri > 0 and pri or nil end
    end)
  end
  expire(task)
  return reply_with(task, args)
end

-- Reset a kicked task: `attempts` more attempts, and `ttl` microseconds to live from now on ('': unchanged).
local function reset_kicked(task, attempts, ttl)
  Entry.count_event(task, 3)
  task.reason = nil
  if attempts ~= '' then task.most = task.attempts + attempts end
  if ttl ~= '' and Call.plan.timed then Entry.set_ttl(task, ttl) end
end

-- Make one buried or delayed task ready; a task in another state is not changed.
-- ARGV  6, 7, 8 as for `find_any` and ack, 9, 10 its new attempts and time to live, as for `reset_kicked`
-- reply  as for ack
function Engine.kick_task(args)
  local task, missing = find_any(args)
  if not task then return missing end
  if task.state == '!' or task.state == '~' then
    reset_kicked(task, args[9], args[10])
    move(task, 'kick')
  end
  expire(task)
  return reply_with(task, args)
end

-- Remove a kept done task; return the reply about it, or nil if it is not kept.
local function forget_done(id, expected)
  local kept = Done.encode(id, expected)
  if kept then Done.forget({ pack('>I6', id) }) end
  return kept
end

-- Remove a task in any state, or only in the given states.
-- ARGV  6, 7, 8 as for `find_any` and ack, 9 the states ('': any)
-- reply  as for ack
function Engine.delete(args)
  local states, task, missing = args[9], find_any(args)
  local function refuses(state)
    return states ~= '' and not string.find(states, state, 1, true)
  end
  if not task then
    local kept = Done.encode(args[6], args[7] or '')
    if not kept then return missing end
    if refuses('-') then return redis.error_reply('STATE -') end
    Done.forget({ pack('>I6', args[6]) })
    return kept, kept
  end
  if refuses(task.state) then return redis.error_reply('STATE ' .. task.state) end
  move(task, 'delete')
  return reply_with(task, args)
end

-- End a task as cancelled. A taken task is kept for `least` microseconds at least.
local function cancel(task, reason, least)
  task.reason = reason ~= '' and reason or nil
  Entry.write(task)
  -- The record keeps the task's own keep_done.
  if task.state == 't' then task.keep_done = math.max(task.keep_done or 0, least + 0) end
  move(task, 'cancel')
end

-- End a task in any state as cancelled.
-- ARGV  6, 7 as for `find_any`, 9 the reason ('': none), 10 the minimum microseconds for which a taken task is kept
-- reply  the task as a kept done task
function Engine.cancel(args)
  local task, missing = find_any(args)
  if not task then return missing end
  cancel(task, args[9], args[10])
  local record = task.record or pack('>c1I7I7I3I1', 'c', Call.now, Call.now, task.attempts, 0) .. task.value
  local reply = pack('>I8c1I4I4i8', task.id, '-', task.attempts, 1, -1) .. record
  return reply, reply
end

-- Change a task in any state.
-- ARGV  6, 7 as for `find_any`, 9 '1': set its data to ARGV[10], 11 its priority, 12 microseconds until it is ready,
--       13 microseconds that it lives from now on ('': unchanged)
-- reply  the task as `Entry.encode` encodes it
function Engine.update(args)
  local task, missing = find_any(args)
  if not task then return missing end
  local delay, ttl, plan = args[12], args[13], Call.plan
  if (delay ~= '' and task.state ~= 'r' and task.state ~= '~') or (ttl ~= '' and task.state == 't') then
    return redis.error_reply('STATE ' .. task.state)
  end
  local pri = pri_of(task, args[11])
  local function change(changed)
    if args[9] ~= '' then Entry.set_data(changed, args[10]) end
    if pri then changed.pri = pri > 0 and pri or nil end
    if ttl ~= '' and plan.timed then Entry.set_ttl(changed, ttl) end
    if changed.state == 't' then Entry.write(changed) end
  end
  if plan.timed and delay ~= '' and tonumber(delay) > 0 then
    move(task, 'update_delayed', Call.now + delay, change)
  elseif plan.timed and delay ~= '' and task.state == '~' then
    move(task, 'update_ready', task.due, change)
  else
    move(task, 'update', task.due, change)
  end
  expire(task)
  local reply = Entry.encode(task)
  return reply, reply
end

-- Change the selected tasks that have not changed since a caller saw them.
-- ARGV  6 the change: kick, release, bury, delete or cancel, 7, 8 its arguments: for kick the new attempts and time to
--       live as `reset_kicked` takes them, for bury and cancel the reason, for cancel the minimum microseconds for
--       which a taken task is kept, 9… for each task its id, 'c' and the moment of its put, its state, its attempts and
--       the number of its take
-- reply  for each task '1' if it was changed, '0' if not; the last tasks are left out if the call was spent
function Engine.act_some(args)
  local act, done, held = args[6], {}, {}
  local change = {
    release = function(task) held[#held + 1] = task.id end,
    delete = function(task) move(task, 'delete') end,
    cancel = function(task) cancel(task, args[7], args[8]) end,
    kick = function(task)
      reset_kicked(task, args[7], args[8])
      move(task, 'kick')
    end,
    bury = function(task)
      task.reason = args[7] ~= '' and args[7] or nil
      if task.state == 't' then Entry.count_event(task, 1) end
      move(task, 'bury')
    end,
  }
  for n = 9, #args, 5 do
    if Call.is_spent() then break end
    local state = args[n + 2]
    local changed
    if state == '-' then
      changed = forget_done(args[n], args[n + 1])
    else
      local task = Entry.find_expected(args[n], args[n + 1])
      changed = task and task.state == state and task.attempts == args[n + 3] + 0 and task.take == args[n + 4] + 0
      if changed then change[act](task) end
    end
    done[#done + 1] = changed and '1' or '0'
  end
  if #held > 0 then require('sessions').release_for_all(held) end
  local result = table.concat(done)
  return result, result
end

Engine.forget_done = forget_done

return Engine
