-- Many tasks in one call, as in many.py: puts, takes and acks with one command for all tasks, and the methods that act on
-- each task of a list. Tubes with limits of lanes, and tubes that clients listen to, move tasks one by one.
local Call = require 'call'
local Bucket = require 'bucket'
local Done = require 'done'
local Engine = require 'engine'
local Entry = require 'entry'
local Keys = require 'keys'
local Lanes = require 'lanes'
local Lists = require 'lists'
local Pending = require 'pending'
local Ready = require 'ready'
local Room = require 'room'
local Waiting = require 'waiting'

local call = redis.call
local pack = struct.pack
local byte = string.byte
local sub = string.sub
local format = string.format

local Many = {}
-- The most tasks per call if they are moved one by one in a tube with limits: each costs ten times as much as usual.
local MOST_LIMITED = 100

-- Put --------------------------------------------------------------------------------------------------------------------

-- Return the words of the tasks to put, and the index of the first: ARGV[12…], or the uploaded list ARGV[7] of ARGV[8]
-- words. nil: the list is gone.
local function words_of(args)
  if args[7] == '' then return args, 12 end
  local words = {}
  local parts = call('LRANGE', Call.key .. ':staged:' .. args[7], 0, -1)
  for n = 1, #parts do
    local part = cmsgpack.unpack(parts[n])
    if #parts == 1 then words = part else for k = 1, #part do words[#words + 1] = part[k] end end
  end
  if #words ~= args[8] + 0 then return nil end
  return words, 1
end

local STAGE_GONE = 'STAGEGONE the uploaded tasks are gone'

-- Call `act(flags, due, pri, count, own, header, at)` for each run of tasks with equal options, until `size` tasks are
-- seen. `own`: each task brings its lane, and the rest of its header with its data. `at`: the index before its tasks.
local function each_run(words, at, size, act)
  local seen = 0
  while seen < size do
    local count, flags = words[at] + 0, words[at + 1]
    local own = count < 0
    if own then count = -count end
    act(flags, words[at + 2] ~= '' and Call.now + words[at + 2] or nil, tonumber(words[at + 3]), count, own, at + (own and 3 or 5))
    at = at + (own and 4 + 2 * count or 6 + count)
    seen = seen + count
  end
end

-- Count the new tasks of the words by their lanes.
local function lanes_of(words, at, size)
  local lanes = Room.lanes()
  each_run(words, at, size, function(flags, _, _, count, own, before)
    local laned = byte(flags) % 128 >= 64
    for n = 1, own and count or 1 do
      local name = 'nil'
      if laned then name = own and words[before + 2 * n - 1] or words[before - 1] end
      lanes.add(name, own and 1 or count)
    end
  end)
  return lanes
end

-- Read the lanes of tasks at once.
local function load_lanes(tasks)
  if not Call.plan.lane then return end
  local names = {}
  for n = 1, #tasks do names[n] = Lanes.name_of(tasks[n]) end
  Pending.load_fields(Call.keys.lanes, names)
end

-- Put the tasks of a batch one by one.
local function put_each(words, at, size, id, created)
  local all, plan = {}, Call.plan
  each_run(words, at, size, function(flags, due, pri, count, own, before)
    local laned = byte(flags) % 128 >= 64
    local head = flags .. created .. (own and '' or words[before])
    for n = 1, count do
      local lane = laned and (own and words[before + 2 * n - 1] or words[before - 1]) or nil
      local task = {
        id = format('%d', id), value = head .. words[own and before + 2 * n or before + n], attempts = 0, created = Call.now,
        due = due, pri = pri, lane = lane,
      }
      if plan.rank then Ready.place(task) end
      id = id + 1
      all[#all + 1] = task
    end
  end)
  Call.set('next', id)
  load_lanes(all)
  for n = 1, size do Engine.add(all[n], all[n].due) end
end

-- Put the tasks of a batch together. All are prepared before the first write, so a rank function that fails for one of
-- them changes nothing.
local function put_together(words, at, size, id, created)
  local plan, K = Call.plan, Call.keys
  local is_list, lane = plan.order == 'list', plan.lane
  -- Of ready and of delayed tasks: ids, fields of ':tasks', arguments of `append_all`, due times, lanes.
  local ready, delayed = { {}, {}, {}, {}, {} }, { {}, {}, {}, {}, {} }
  local task = { created = Call.now }
  each_run(words, at, size, function(flags, due, pri, count, own, before)
    local laned = byte(flags) % 128 >= 64
    local name = laned and not own and words[before - 1] or 'nil'
    local head = flags .. created .. (own and '' or words[before])
    local ids, stored, order, dues, lanes = unpack(plan.timed and byte(flags) % 2 == 1 and delayed or ready)
    local moment = due and format('%.0f', due)
    if due then Call.note_due(due) end
    task.pri = pri
    local first = #ids
    for n = first + 1, first + count do
      local text = format('%d', id)
      local data
      if own then
        data = before + 2 * (n - first)
        if laned then name = words[data - 1] end
      else
        data = before + n - first
      end
      ids[n], stored[2 * n - 1], stored[2 * n] = text, text, head .. words[data]
      if not is_list then
        task.id = id
        if lane then order[n], lanes[n] = Ready.place(task), name else order[2 * n - 1], order[2 * n] = '0', Ready.place(task) end
      end
      if due then dues[#dues + 1], dues[#dues + 2] = moment, pack('>I6', id) end
      id = id + 1
    end
  end)
  Call.set('next', id)
  if #ready[1] > 0 then
    local ids, stored, order, dues, lanes = unpack(ready)
    Lists.run('HSET', K.tasks, stored)
    Call.plan.index.append_all(is_list and ids or order, lanes)
    if plan.timed then Lists.run('ZADD', K.due, dues) end
  end
  if #delayed[1] > 0 then
    local ids, stored, _, dues = unpack(delayed)
    Lists.run('HSET', K.tasks, stored)
    call('HINCRBY', Call.key, 'delayed', #ids)
    Lists.run('ZADD', K.due, dues)
  end
end

-- Add all of the given tasks, or none.
-- ARGV  6 the number of tasks, 7 the list with the uploaded words ('': the words are ARGV[12…]), 8 the number of words,
--       9 the capacity of the tube ('': unlimited), 10 how many callers in the process wait if the tube is full ('':
--       none), 11 the process, 12… words. For tasks with equal options: their number; ARGV[6], [8], [9] and [10] of
--       put; the rest of their header; the data of each. If they differ only in their lanes: their number, negative;
--       ARGV[6], [8] and [9] of put; the lane of each, and the rest of its header with its data
-- reply  the moment of the put in 7 bytes, then the id of the first task; nil if the tube is full
function Many.put_many(args)
  local size, plan = tonumber(args[6]), Call.plan
  local counts = plan.lane and Call.counts_lanes()
  if plan.bounded and not counts and not Room.check(size, args[10], args[11]) then return false end
  local words, at = words_of(args)
  if not words then return redis.error_reply(STAGE_GONE) end
  local lanes
  if counts then
    lanes = lanes_of(words, at, size)
    local room = Room.check(size, args[10], args[11], lanes)
    if room ~= true then return room end
  end
  local created, id = pack('>I7', Call.now), Engine.next_id()
  if lanes then Lanes.add_counts(lanes.new) end
  if Call.rate_limits or Call.listening then
    Pending.run(put_each, words, at, size, id + 0, created)
  else
    put_together(words, at, size, id + 0, created)
  end
  if args[7] ~= '' then call('UNLINK', Call.key .. ':staged:' .. args[7]) end
  if (args[10] or '') ~= '' then Waiting.stop_waiting_for_room(args[11]) end
  local result = created .. id
  return result, result
end

-- A task to put, and what its key means for it: `found` the task that has the key (`lives`: it is still in the tube),
-- `kept`: the existing task stays, so this one is not added.
local function keyed_task(id, flags, created, header, data, span, pri, lane, key, how)
  return {
    id = format('%d', id), value = flags .. created .. header .. data, attempts = 0, created = Call.now,
    due = span and Call.now + span, pri = pri, lane = lane, name = key ~= '' and how ~= 'bury' and key,
    why = how == 'bury' and key, raw = how == 'update' and data, kept = false,
  }
end

-- Return an encoder of existing tasks for the reply: the task, or '?' and its id if the reply is too large, or the id of a
-- task that has ended.
local function existing_encoder()
  local size = 0
  return function(id)
    if size >= Call.BYTES then return '?' .. id end
    local task = Entry.find(id)
    if not task then return tonumber(id) end
    local facts = Entry.encode(task)
    size = size + #facts
    return facts
  end
end

-- Return the reply of a repeated put_keyed.
local function keyed_reply_again(replayed)
  local encode = existing_encoder()
  local reply = { sub(replayed, 1, 7) .. string.match(replayed, '^%d+', 8) }
  for mark in string.gmatch(string.match(replayed, ';(.*)', 8), '[^,]+') do
    local id = string.match(mark, '%d+')
    reply[#reply + 1] = id and encode(id) or ''
  end
  return reply
end

-- Return the keys of the tasks to put.
local function keys_of(words, at, size)
  local keys, seen = {}, 0
  while seen < size do
    if words[at + 6] ~= '' and words[at + 7] ~= 'bury' then keys[#keys + 1] = words[at + 6] end
    seen, at = seen + words[at], at + 8 + words[at]
  end
  return keys
end

-- Give a new task its key. `replaces`: it has removed another task with this key, which cannot be undone.
local function assign_key(task, replaces, known)
  Keys.add(task.name, task.id, known)
  if replaces then
    local stored = Entry.find(task.id)
    stored.replaces = true
    Entry.write(stored)
  end
end

-- Replace the data of the living task with a key.
local function update_data(id, data)
  local task = Entry.find(id)
  Engine.move(task, 'update', task.due, function(changed)
    Entry.set_data(changed, data)
    if changed.state == 't' then Entry.write(changed) end
  end)
end

-- Add all of the given tasks, or none, as put_many does, but one by one, because some have keys.
-- ARGV  6 to 11 as for put_many, 12… words as there, and before the data its key ('': none), and 'keep', 'replace',
--       'update' or 'raise'; for a task that is buried at once the reason instead of the key, and 'bury'
-- reply  a list: the moment of the put in 7 bytes and the id of the first new task; then for each task '' if it is new,
--        the living task with its key as `Entry.encode` encodes it, or '?' and its id if the reply is too large, or the
--        id of the remembered task; nil if the tube is full; the error DUPLICATE names the existing task and the item,
--        counted from 0
-- `limit`: the maximum of ready and delayed tasks; the error FULL names the number of new ones. `remove`: removes a task
-- that is replaced.
local function put_keyed(args, limit, remove)
  if Call.replayed then return keyed_reply_again(Call.replayed) end
  local size, plan = tonumber(args[6]), Call.plan
  local words, at = words_of(args)
  if not words then return redis.error_reply(STAGE_GONE) end
  local created, first = pack('>I7', Call.now), Engine.next_id()
  local id = first + 0
  local lanes = plan.lane and Call.counts_lanes() and Room.lanes()
  local keys = keys_of(words, at, size)
  Pending.load_fields(Call.keys.keys, keys)
  Keys.load(keys)
  -- Decide about each task before the first put.
  local all, needed, added, made, lane_made = {}, 0, 0, {}, {}
  while #all < size do
    local count, flags, span, pri = tonumber(words[at]), words[at + 1], tonumber(words[at + 2]), tonumber(words[at + 3])
    local lane = byte(flags) % 128 >= 64 and words[at + 4] or nil
    local header, key, how = words[at + 5], words[at + 6], words[at + 7]
    at = at + 7
    for n = at + 1, at + count do
      local task = keyed_task(id, flags, created, header, words[n], span, pri, lane, key, how)
      local found, lives
      if task.name then
        found, lives = made[key], true
        if not found then found, lives = Keys.find(key) end
        if found and how == 'raise' then return redis.error_reply('DUPLICATE ' .. found .. ' ' .. #all) end
        task.kept, task.known = found and how ~= 'replace', not lives and found
      end
      if not task.kept then
        local replaces = found and lives
        -- A task that replaces another needs no room.
        if not replaces then needed = needed + 1 end
        local before = replaces and not made[key] and Entry.find(found)
        if limit and (not replaces or (before and (before.state == 't' or before.state == '!'))) then added = added + 1 end
        if lanes then
          if replaces then lanes.grow(lane_made[key] or Lanes.name_of(before), -1) end
          lanes.add(Lanes.name_of(task), 1)
          if task.name then lane_made[key] = Lanes.name_of(task) end
        end
        if task.name then made[key] = task.id end
        if plan.rank then Ready.place(task) end
        id = id + 1
      end
      all[#all + 1] = task
    end
    at = at + count + 1
  end
  local K = Call.keys
  if limit and added > 0 and call('HLEN', K.tasks) - call('ZCARD', K.taken) - call('ZCARD', K.buried) + added > limit then
    return redis.error_reply('FULL ' .. added)
  end
  if plan.bounded or lanes then
    local room = Room.check(needed, args[10], args[11], lanes)
    if room ~= true then return room end
  end
  local encode = existing_encoder()
  local reply, marks, updated = { created .. first }, {}, false
  Call.set('next', id)
  if lanes then Lanes.add_counts(lanes.new) end
  load_lanes(all)
  if remove then remove() end
  for n = 1, size do
    local task = all[n]
    local lives = task.name and Pending.get(K.keys, task.name)
    local found = lives or task.known
    if task.kept then
      if lives and task.raw then
        update_data(found, task.raw)
        updated = true
      end
      reply[n + 1], marks[n] = lives and encode(found) or tonumber(found), found
    else
      reply[n + 1], marks[n] = '', 'n'
      local known = task.known
      if lives then
        local before = Entry.find(found)
        Engine.move(before, 'delete')
        known = before.key_ttl
      end
      Engine.add(task, task.due)
      if task.name then assign_key(task, lives, known) end
      if task.why then
        local dead = Entry.find(task.id)
        dead.reason = task.why
        Engine.move(dead, 'bury')
      end
    end
  end
  if args[7] ~= '' then call('UNLINK', Call.key .. ':staged:' .. args[7]) end
  if (args[10] or '') ~= '' then Waiting.stop_waiting_for_room(args[11]) end
  if id == first + 0 and args[7] == '' and not updated then
    -- All tasks exist: return without a write, which a server that is out of memory would refuse.
    return reply
  end
  return reply, created .. first .. ';' .. table.concat(marks, ',')
end

function Many.put_keyed(args)
  return Pending.run(put_keyed, args)
end

-- Add all of the given tasks, unless the tube would then have too many ready and delayed tasks.
-- ARGV  6… as for put_keyed; the last one is the maximum of ready and delayed tasks
-- reply  as for put_keyed; the error FULL names the number of new tasks
function Many.put_limited(args)
  return Pending.run(put_keyed, args, tonumber(args[#args]))
end

-- Put a task instead of another one, which is removed. It is in any state, or a done task that is kept.
-- ARGV  6 to 20 as for put_keyed with one task, 21 the id of the old task, 22 its put, as for `find_any`, 23 as the last
--       one for put_limited (left out: no maximum)
-- reply  as for put_keyed; the error NOTFOUND if there is no such task, or the error FULL
function Many.put_again(args)
  local old = not Call.replayed and Entry.find_expected(args[21], args[22])
  if not Call.replayed and not old and not Done.encode(args[21], args[22]) then
    return redis.error_reply('NOTFOUND there is no such task')
  end
  return Pending.run(put_keyed, args, tonumber(args[23]), function()
    if old then Engine.move(old, 'delete') else Done.forget({ pack('>I6', args[21]) }) end
  end)
end

-- Take -------------------------------------------------------------------------------------------------------------------

-- Return the values of popped tasks until one reply has `room` bytes of data, and give the other tasks back. `given`:
-- true if there are such tasks.
local function values_within(ids, room, popped)
  local tasks, found, size, count, all = Call.keys.tasks, {}, 0, 0, #ids
  while count < all and size < room do
    -- Read small tasks by the hundred, which saves commands.
    local step = count > 0 and size < 1000 * count and 100 or 20
    local some = call('HMGET', tasks, unpack(ids, count + 1, math.min(count + step, all)))
    for n = 1, #some do
      local value = some[n]
      found[count + n], size = value, size + #value
    end
    count = count + #some
  end
  local given = count < all
  if given then Call.plan.index.unpop(ids, count + 1, popped) end
  return found, given
end

-- Take popped tasks together; `values` may be missing in a tube without due times if all are taken for the first time.
-- Return their attempts and due times (-1: none) as strings. `leased`: their ttr does not run.
local function start_all(ids, values, leased)
  local plan, text_of, attempts, due_times, dues, undue = Call.plan, {}, {}, {}, {}, {}
  local session_take = format('%.0f', Call.session * Call.TAKES + Call.take)
  local scores = {}
  for n = 1, #ids do
    -- Most tasks have no flags, so they need not be read.
    local task = plan.timed and byte(values[n]) ~= 0 and Entry.read(ids[n], values[n])
    local count = task and task.attempts or values and Entry.attempts_of(values[n]) or 0
    count = math.min(count + 1, Call.MOST_ATTEMPTS)
    local text = text_of[count]
    if not text then
      text = format('%d', count)
      text_of[count] = text
    end
    attempts[n] = text
    if task then
      local due = not leased and task.ttr and Call.now + task.ttr or nil
      local dead = plan.ends_taken and Entry.ttl_end(task)
      if dead and (not due or dead <= due) then
        -- A ready task with a ttl is already in ':due' with this moment.
        due_times[n] = format('%.0f', dead)
      elseif due then
        dues[#dues + 1], dues[#dues + 2] = format('%.0f', due), pack('>I6', ids[n])
        due_times[n] = dues[#dues - 1]
        Call.note_due(due)
      else
        due_times[n] = '-1'
        if task.ttl then undue[#undue + 1] = pack('>I6', ids[n]) end
      end
    elseif plan.timed then
      due_times[n] = '-1'
    end
    scores[2 * n - 1], scores[2 * n] = session_take, ids[n]
  end
  Lists.run('ZADD', Call.keys.taken, scores)
  if plan.timed then
    Lists.run('ZREM', Call.keys.due, undue)
    Lists.run('ZADD', Call.keys.due, dues)
  end
  if plan.token > 0 then Bucket.start(#ids) end
  Engine.count({ 'take' }, #ids)
  return attempts, due_times
end

-- Read the tasks that exist and their lanes; return them by id, and as a list.
local function load_tasks(ids)
  local by_id, list = {}, {}
  Pending.load_fields(Call.keys.tasks, ids)
  for n = 1, #ids do
    local value = Pending.get(Call.keys.tasks, ids[n])
    local is_read, task = pcall(Entry.read, ids[n], value)
    -- A damaged task raises its error when it is its turn.
    if value and is_read then by_id[ids[n]], list[#list + 1] = task, task end
  end
  load_lanes(list)
  return by_id, list
end

-- Read a task that was popped and those that were popped ahead; return them by id, and their number.
local function load_popped(id)
  local ids = { id }
  for _, at in ipairs(Pending.popped(Call.keys.offers)) do ids[#ids + 1] = format('%d', Ready.id_at(at)) end
  return load_tasks(ids), #ids
end

-- Take the first tasks one by one, up to `limit`. `span`: the time of the take; `leased`: their ttr does not run.
-- Return the tasks, and true if there may be more.
local function take_each(limit, room, span, leased, most)
  local tasks, size, loaded, left = {}, 0, nil, 0
  for n = 1, limit do
    if n > most or size >= room then return tasks, true end
    -- Small tasks are popped by the hundred, which saves commands.
    local id = Call.plan.index.pop(math.min(limit - n + 1, size < 1000 * (n - 1) and 100 or 20))
    if not id then return tasks, id == nil end
    id = format('%d', id)
    if left == 0 then loaded, left = load_popped(id) end
    left = left - 1
    local task = loaded[id] or Entry.read(id, Pending.get(Call.keys.tasks, id))
    loaded[id] = nil
    if span and not task.ttr then
      task.ttr = span
      Entry.write(task)
    end
    task.owner = Call.session
    Engine.move(task, 'take', span and Call.now + span or not leased and task.ttr and Call.now + task.ttr or nil)
    tasks[n] = task
    size = size + #task.value
  end
  return tasks, false
end

-- Take popped tasks; the arguments and results are those of `take_some`. `untaken`: none was taken before.
local function start_popped(ids, popped, stuck, untaken, room, leased, bare)
  if bare and room < math.huge then
    local size = 0
    for n = 1, #ids do
      if size >= room then
        Call.plan.index.unpop(ids, n, popped)
        break
      end
      size = size + call('HSTRLEN', Call.keys.tasks, ids[n])
    end
    room = math.huge
  end
  local values, given
  if not (bare and untaken and not Call.plan.timed) or Call.listening then
    if bare then values = Lists.collect('HMGET', Call.keys.tasks, ids) else values, given = values_within(ids, room, popped) end
    stuck = stuck or given
  end
  if not Call.listening then
    local attempts, due_times = start_all(ids, values, leased)
    return nil, ids, attempts, due_times, values, stuck
  end
  local tasks = {}
  for n = 1, #ids do tasks[n] = Entry.read(ids[n], values[n]) end
  for _, task in ipairs(tasks) do
    task.owner = Call.session
    Engine.move(task, 'take', not leased and task.ttr and Call.now + task.ttr or nil)
  end
  return tasks, nil, nil, nil, nil, stuck
end

-- Return popped tasks to their places, except for damaged ones.
local function unpop_readable(ids, popped)
  local readable, places = {}, {}
  for n = 1, #ids do
    local value = call('HGET', Call.keys.tasks, ids[n])
    if value and pcall(Entry.read, ids[n], value) then
      readable[#readable + 1] = ids[n]
      places[2 * #readable - 1] = popped and popped[2 * n - 1]
    end
  end
  Call.plan.index.unpop(readable, 1, places)
end

-- Take the first tasks, up to `limit`, until their data have `room` bytes. `leased`: their ttr does not run. `bare`: the
-- values are not needed. Return tasks; or nil and their ids, attempts, due times and values; and true if there are more,
-- but they were not found yet.
function Many.take_some(limit, room, leased, bare)
  if Call.rate_limits then
    local tasks, stuck = Pending.run(take_each, limit, room, nil, leased, MOST_LIMITED)
    return tasks, nil, nil, nil, nil, stuck
  end
  -- Released tasks are in ':back', not in the list: without strays no task was taken before.
  local untaken = Call.plan.order == 'list' and (Call.strays or 0) + 0 == 0
  local ids, stuck, popped = Call.plan.index.pop_some(limit)
  if #ids == 0 then return {}, nil, nil, nil, nil, stuck end
  local is_done, tasks, taken, attempts, due_times, values, given =
    pcall(start_popped, ids, popped, stuck, untaken, room, leased, bare)
  if not is_done then
    unpop_readable(ids, popped)
    error(tasks, 0)
  end
  return tasks, taken, attempts, due_times, values, given
end

-- Return the tasks that a repeated call has taken and its caller still holds, for its reply; nil: there are none.
local function taken_before()
  if not Call.replayed then return nil end
  local tasks = {}
  for id in string.gmatch(Call.replayed, '%d+') do
    local task = Entry.find_held(id, Call.take)
    if task and Call.plan.timed then task.due = Entry.due_of(task.id) end
    tasks[#tasks + 1] = task
  end
  -- Report that there may be more.
  return #tasks > 0 and Entry.encode_many(tasks, true) or nil
end

-- Return the reply of a call that took `tasks`, and its text for a repeated call.
local function reply_with(tasks, stuck)
  if #tasks == 0 then return stuck and redis.error_reply('AGAIN call again') or {} end
  local reply = Entry.encode_many(tasks, stuck)
  return reply, reply[1]
end

-- Take the next tasks.
-- ARGV  6 the maximum number of tasks
-- reply  {their ids, their attempts, their due times (-1: none; '' in tubes without due times), each in one string; '1'
--        if more tasks can be taken although these are fewer than requested; the number of the take; the tasks}; an
--        empty list if no task can be taken
function Many.take_many(args)
  local before = taken_before()
  if before then return before end
  local tasks, ids, attempts, due_times, values, stuck = Many.take_some(tonumber(args[6]), Call.BYTES, false, false)
  if tasks then return reply_with(tasks, stuck) end
  local result = table.concat(ids, ' ')
  return {
    result, table.concat(attempts, ' '), table.concat(due_times, ' '), stuck and '1' or '', Call.take, values,
  }, result
end

-- Take the next tasks for the given time: a task without a ttr keeps it as its ttr.
-- ARGV  6 the maximum number of tasks, 7 microseconds
-- reply  as for take_many
function Many.take_for(args)
  local before = taken_before()
  if before then return before end
  return reply_with(Pending.run(take_each, tonumber(args[6]), Call.BYTES, tonumber(args[7]), false, Call.plan.batch))
end

-- The end of takes ---------------------------------------------------------------------------------------------------

-- Return the next ids of a list from `first` on, to read their tasks at once: at first four, then some of the same size.
local function next_ids(all, first)
  local size = first == 1 and 4 or math.max(1, math.min(50, math.floor(Call.WORK / 8 * first / Pending.bytes)))
  return { unpack(all, first, math.min(first + size - 1, #all)) }
end

-- Read tasks that a session may hold, and their lanes and keys; return them by id.
local function load_held(ids)
  Pending.load_scores(Call.keys.taken, ids)
  local by_id, list = load_tasks(ids)
  local keys = {}
  for n = 1, #list do keys[#keys + 1] = list[n].key end
  if #keys > 0 then Keys.load(keys) end
  return by_id
end

-- Call `act(task)` for each task of the list `named` that the session holds by the takes `expected`; return '1' or '0'
-- for each, until the call is spent.
local function act_each(named, expected, act)
  local done, loaded, last = {}, nil, 0
  for n = 1, #named do
    if Call.is_spent() then break end
    if n > last then
      local ids = next_ids(named, n)
      loaded, last = load_held(ids), last + #ids
    end
    local task = Entry.find_held(named[n], expected[n], loaded[named[n]])
    loaded[named[n]] = nil
    done[n] = task and '1' or '0'
    if task then act(task) end
  end
  return done
end

-- Return the ids and the takes of the arguments from `first` on.
local function pairs_of(args, first)
  local named, expected = {}, {}
  for n = first, #args, 2 do named[#named + 1], expected[#expected + 1] = args[n], args[n + 1] end
  return named, expected
end

-- The same for a list of arguments, as the reply of a call.
local function each_held(args, first, act)
  local named, expected = pairs_of(args, first)
  local result = table.concat(Pending.run(act_each, named, expected, act))
  return result, result
end

-- Forget or remember the keys of tasks that have ended.
local function leave_keys(tasks)
  local keys = {}
  for n = 1, #tasks do keys[n] = tasks[n].key end
  Keys.load(keys)
  for n = 1, #tasks do Keys.leave(tasks[n]) end
end

-- Ack tasks together whose values need not be known, or only for their lanes, keys and due times. `removed`: they
-- have left ':taken'. Return how many of them were acked.
local function ack_together(held, removed)
  local plan, K, ids = Call.plan, Call.keys, held
  local undue, lanes, keyed = {}, {}, {}
  if plan.lane then
    ids = {}
    while #ids < #held and not Call.is_spent() do
      local some = next_ids(held, #ids + 1)
      local values = call('HMGET', K.tasks, unpack(some))
      for n = 1, #some do
        local task = Entry.read(some[n], values[n])
        ids[#ids + 1], lanes[#lanes + 1] = some[n], Lanes.name_of(task)
        if task.ttl or task.ttr then undue[#undue + 1] = pack('>I6', some[n]) end
        if task.key then keyed[#keyed + 1] = task end
        Pending.bytes = Pending.bytes + #values[n]
      end
    end
  elseif plan.timed and call('EXISTS', K.due) == 1 then
    for n = 1, #ids do undue[n] = pack('>I6', ids[n]) end
  end
  if not removed then Lists.run('ZREM', K.taken, ids) end
  Lists.run('HDEL', K.tasks, ids)
  if plan.lane then
    if Call.counts_lanes() then
      local gone = {}
      for n = 1, #lanes do gone[lanes[n]] = (gone[lanes[n]] or 0) + 1 end
      for name, count in pairs(gone) do Lanes.subtract(name, count) end
    end
    Lanes.free_all(lanes)
  end
  if plan.timed then Lists.run('ZREM', K.due, undue) end
  Engine.count({ 'ack' }, #ids)
  if #keyed > 0 then Pending.run(leave_keys, keyed) end
  return #ids
end

-- True if acks of several tasks move them one by one.
local function acks_each()
  local plan = Call.plan
  return Call.rate_limits or Call.listening or plan.keeps or (not plan.lane and call('EXISTS', Call.keys.keys) == 1)
end

-- Ack all tasks of one take, without looking at each. Return false, and change nothing, if the session holds another
-- number of tasks by this take, or if the tube moves tasks one by one.
function Many.ack_whole(named, take)
  if Call.plan.lane or acks_each() then return false end
  local score = format('%.0f', Call.session * Call.TAKES + take)
  if call('ZCOUNT', Call.keys.taken, score, score) ~= #named then return false end
  call('ZREMRANGEBYSCORE', Call.keys.taken, score, score)
  ack_together(named, true)
  return true
end

-- Ack the tasks `named`, by the takes `expected` (see `Entry.find_held`). Return '1' for each task that the session
-- held, else '0', until the call is spent.
function Many.ack_some(named, expected)
  local done = {}
  if acks_each() then
    return Pending.run(act_each, named, expected, function(task) Engine.move(task, 'ack') end)
  end
  local ids, first, text_of, lost = named, Call.session * Call.TAKES, {}, false
  local scores = Lists.collect('ZMSCORE', Call.keys.taken, named)
  for n = 1, #named do
    local score, by = scores[n], expected[n]
    local text = text_of[by]
    if not text then
      text = (tonumber(by) or -1) >= 0 and format('%.0f', first + by) or by
      text_of[by] = text
    end
    -- Equal strings need no conversion to a number.
    if score == text or (score and text == by and Entry.find_held(named[n], by)) then
      done[n] = '1'
    else
      done[n], lost = '0', true
    end
  end
  if lost then
    ids = {}
    for n = 1, #named do
      if done[n] == '1' then ids[#ids + 1] = named[n] end
    end
  end
  local left = #ids - ack_together(ids)
  while left > 0 do
    left = left - done[#done]
    done[#done] = nil
  end
  return done
end

-- Ack held tasks.
-- ARGV  6… for each task its id and its take, as for ack
-- reply  for each task '1' if it is done, '0' if it was not held; the last tasks are left out if the call was spent
function Many.ack_many(args)
  local result = table.concat(Many.ack_some(pairs_of(args, 6)))
  return result, result
end

-- Release held tasks.
-- ARGV  6 microseconds until they are ready ('': at once; 'backoff': by the backoff of the tube), 7… as for ack_many
-- reply  as for ack_many
function Many.release_many(args)
  return each_held(args, 7, function(task) Engine.release_one(task, args[6]) end)
end

-- Extend the ttr of held tasks to at least this span from now; if the ttl ends taken tasks, extend it as well.
-- ARGV  6 microseconds, 7… as for ack_many
-- reply  as for ack_many
function Many.renew_many(args)
  return each_held(args, 7, function(task) Engine.renew(task, args[6]) end)
end

-- Remove tasks in any state, or only in the given states.
-- ARGV  6 the states ('': any), 7… for each task its id, and its take or put, as for `find_any`
-- reply  for each task '1' if it was removed, '0' if not; as for ack_many
function Many.delete_many(args)
  local done, states = {}, args[6]
  local function allows(state)
    return states == '' or string.find(states, state, 1, true)
  end
  for n = 7, #args, 2 do
    if Call.is_spent() then break end
    local task = Entry.find_expected(args[n], args[n + 1])
    local gone
    if task then
      gone = allows(task.state)
      if gone then Engine.move(task, 'delete') end
    else
      gone = allows('-') and Engine.forget_done(args[n], args[n + 1])
    end
    done[#done + 1] = gone and '1' or '0'
  end
  local result = table.concat(done)
  return result, result
end

-- Moves to another tube -----------------------------------------------------------------------------------------------

-- Find the tasks of a list that are unchanged since a caller read them, until the call is spent. ARGV `first` to `final`:
-- for each task its id, its take or put as for `find_any`, its state, and the SHA-1 of its data.
local function unchanged(args, first, final)
  local found, done = {}, {}
  for n = first, final, 4 do
    if Call.is_spent() then break end
    local task = Entry.find_expected(args[n], args[n + 1])
    local same = task and task.state == args[n + 2] and redis.sha1hex(sub(task.value, task.body)) == args[n + 3]
    found[#done + 1] = same and task
    done[#done + 1] = same and '1' or '0'
  end
  return found, done
end

-- Remove tasks that now live elsewhere: they are not kept, and their keys become free.
local function move_out(found, done)
  for n = 1, #done do
    local task = found[n]
    if task then
      task.keep_done, task.key_ttl = nil, nil
      Engine.move(task, 'delete')
    end
  end
  local result = table.concat(done)
  return result, result
end

-- Remove tasks that are unchanged since a caller read them, because they now live elsewhere.
-- ARGV  6… four words of each task, as for `unchanged`
-- reply  for each task '1' if it was removed, '0' if not; as for ack_many
function Many.evict(args)
  return move_out(unchanged(args, 6, #args))
end

-- Move tasks that are unchanged since a caller read them to another tube of the server: put them there, remove them
-- here. The put is a call of its own in the other tube, between reading the tasks and removing them.
-- ARGV  6 the number of tasks, then four words of each as for `unchanged`; then the meta hash of the other tube, ARGV 1 to
--       5 and 9 of `put_keyed` for that tube, and nine words of each task as for `put_keyed`
-- reply  as for evict; the error THERE with the error of `put_keyed`, or FULL if the other tube is full
function Many.relay(args)
  local last = 6 + 4 * args[6]
  local found, done = unchanged(args, 7, last)
  local words, count, places = {}, 0, {}
  for n = 1, 5 do words[n] = args[last + 1 + n] end
  for n = 1, #done do
    if done[n] == '1' then
      for k = 1, 9 do words[11 + 9 * count + k] = args[last + 7 + 9 * (n - 1) + k] end
      count = count + 1
      places[count] = n - 1
    end
  end
  if count == 0 then return move_out(found, done) end
  words[6], words[7], words[8], words[9], words[10], words[11] = '' .. count, '', '' .. 9 * count, args[last + 7], '', ''
  local here = Call.save()
  local reply = require('functions').run('put_keyed', { args[last + 1] }, words)
  -- Delete the kept reply of the put: if the call is sent again, this call returns its own.
  if reply and not reply.err then call('HDEL', args[last + 1], words[3]) end
  Call.restore(here)
  if not reply then return redis.error_reply('THERE FULL') end
  if reply.err then
    local why = string.gsub(reply.err, '^(DUPLICATE %d+) (%d+)', function(id, n) return id .. ' ' .. places[n + 1] end)
    return redis.error_reply('THERE ' .. why)
  end
  return move_out(found, done)
end

return Many
