-- Ready tasks in their order.
--
-- A place is a string that sorts as the tasks come: what the driver ranks by, then the id in 6 bytes.
local function place(task)
  local id = pack('>I6', NEWEST_FIRST and 281474976710655 - task.id or task.id)
--#if RANK
  local pri, created = task.pri or 0, task.created
  -- Plus 0: there are two zeros, and they sort apart.
  local rank = pack('>d', (function(id) return RANK_LUA end)(tonumber(task.id)) + 0)
  -- The bits of a double sort as numbers do once the sign is turned (or all bits, below zero).
  local a, b, c, d, e, f, g, h = byte(rank, 1, 8)
  if a >= 128 then
    rank = string.char(255 - a, 255 - b, 255 - c, 255 - d, 255 - e, 255 - f, 255 - g, 255 - h)
  else
    rank = string.char(a + 128, b, c, d, e, f, g, h)
  end
  return rank .. id
--#elif ORDER_PRI
  -- How many bytes it has, then the bytes: most priorities are 0, and a place is kept for every task.
  local pri = GREATEST_FIRST and 4294967295 - (task.pri or 0) or task.pri or 0
  if pri == 0 then return '\0' .. id end
  local size = pri < 256 and 1 or pri < 65536 and 2 or 4
  return pack('>I1I' .. size, size, pri) .. id
--#else
  return id
--#end
end

local function id_at(at)
  local id = unpack_struct('>I6', at, #at - 5)
  return NEWEST_FIRST and 281474976710655 - id or id
end

--#if LIST
-- Tasks come by their ids alone: ':ready' is a list of them, to which a put appends. What comes back to its own place
-- goes to the sorted set ':back'. An id may stay in the list after its task has left: `loose` counts those, plus what is
-- in ':back', so that nobody looks for either where there is none.
local function append(task)
  call('RPUSH', M .. ':ready', task.id)
end

local function append_all(ids)
  many('RPUSH', M .. ':ready', ids)
end

-- And how many stale ids a script skips at most.
local loose, skips = (META.loose or 0) + 0, 1000

local function loosen(by)
  loose = call('HINCRBY', M, 'loose', by)
end

local function push(task)
  loosen(1)
  call('ZADD', M .. ':back', 0, place(task))
end

-- Whether the task of an id from the list is ready there.
local function counts(id)
  local value = call('HGET', M .. ':tasks', id)
  if not value or byte(value, 1) % 4 ~= 0 then return false end
  return not call('ZSCORE', M .. ':taken', id)
end

local function pull(task)
  if call('ZREM', M .. ':back', place(task)) == 1 then return loosen(-1) end
  -- It stays in the list as a stale id, unless it stands near its end.
  if META.next - task.id < 100 and call('LREM', M .. ':ready', -1, task.id) == 1 then return end
  loosen(1)
end

-- The id of the first task; false: there is none; nil: not found yet, there were too many stale ones. `popped`: those that
-- this call has got and that are not taken yet, by their ids as numbers: one that had come back stands in the list too.
local function pop(popped)
  if META.paused and META.paused + 0 > now then return false end
  if loose == 0 then return call(POP, M .. ':ready') end
--#slow if loose ~= 0
  local back = call('ZRANGE', M .. ':back', 0, 0)[1]
  local returned = back and id_at(back)
  while skips > 0 do
    local id = tonumber(call('LINDEX', M .. ':ready', HEAD) or nil)
    if returned and (not id or (NEWEST_FIRST and returned >= id) or (not NEWEST_FIRST and returned <= id)) then
      call('ZREM', M .. ':back', back)
      loosen(-1)
      return returned
    end
    if not id then return false end
    call(POP, M .. ':ready')
    if counts(id) and not (popped and popped[id]) then return id end
    loosen(-1)
    skips = skips - 1
  end
--#fast
end

-- The ids of the first tasks, up to so many; whether not all were found, since there were too many stale ones; and what
-- `unpop` has to know of them.
local function pop_some(limit)
  if META.paused and META.paused + 0 > now then return {} end
  if loose == 0 then return call(POP, M .. ':ready', limit) or {} end
--#slow if loose ~= 0
  local ids, popped = {}, {}
  for n = 1, limit do
    local id = pop(popped)
    if not id then return ids, id == nil end
    ids[n] = string.format('%d', id)
    popped[id + 0] = true
  end
  return ids
--#fast
end

-- Those from `first` on stand again where they were popped.
local function unpop(ids, first)
  for n = #ids, first, -1 do
    if loose == 0 then call(UNPOP, M .. ':ready', ids[n]) else push({ id = ids[n] }) end
    ids[n] = nil
  end
end

local function takeable()
  return call('EXISTS', M .. ':ready', M .. ':back') > 0
end

-- Stale ids are forgotten when they are more than the tasks, and many: some with each verb, and twice as many as it has made.
-- They leave the list at its beginning; ready tasks among them go to ':back', where they come in the same order.
local function tidy()
  local stale = loose - call('ZCARD', M .. ':back')
  if stale < 1000 or stale < 2 * call('HLEN', M .. ':tasks') then return end
  local left, size, by = 500 + 2 * math.max(0, loose - (META.loose or 0)), 0, 0
  while left > 0 and size < BYTES do
    local ids = call('LPOP', M .. ':ready', 20)
    if not ids then break end
    local values, scores = call('HMGET', M .. ':tasks', unpack(ids)), call('ZMSCORE', M .. ':taken', unpack(ids))
    for n = 1, #ids do
      local value = values[n]
      local ready = value and byte(value, 1) % 4 == 0 and not scores[n]
      by = by + (ready and call('ZADD', M .. ':back', 0, place({ id = ids[n] })) == 1 and 1 or -1)
      size = size + (value and #value or 0)
    end
    left = left - #ids
  end
  loosen(by)
end

--#elif LANE
-- ':offers' has the best ready task of each free lane, ':behind' the other ready ones by lane and place. ':lanes' has a
-- record per lane that is taken or has a task on offer: its number in 5 bytes, then the place of the one on offer.
-- In a tube with paces, `pace`, it has more: see paces.lua.
local lane, lane_record, lane_key, lane_taken, lane_head, pace

-- The place of the best task behind others.
local function behind()
  local best = call('ZRANGEBYLEX', M .. ':behind', '[' .. lane_key, '+', 'LIMIT', 0, 1)[1]
  return best and sub(best, 1, 5) == lane_key and sub(best, 6)
end

-- A new task: what stands behind others stands behind one on offer, or its lane is taken.
local function append(task, first)
  local at = place(task)
  first = first or lane_head
  lane_key = lane_key or pack('>I5', call('HINCRBY', M, 'lanes', 1))
  if lane_taken or (first and first < at) then
    call('ZADD', M .. ':behind', 0, lane_key .. at)
    return
  end
  if lane_head then
    call('ZREM', M .. ':offers', lane_head)
    call('ZADD', M .. ':behind', 0, lane_key .. lane_head)
  end
  lane_head = at
  call('ZADD', M .. ':offers', pace and pace.place or 0, at)
end

-- One that comes back: where its lane was just freed, others may stand behind.
local function push(task)
  append(task, not lane_head and lane_key and not lane_taken and behind())
end

local function pull(task)
  local at = place(task)
  if lane_head == at then
    lane_head = false
    call('ZREM', M .. ':offers', at)
  else
    call('ZREM', M .. ':behind', lane_key .. at)
  end
end

local function pop()
  if META.paused and META.paused + 0 > now then return false end
  local at = call('ZPOPMIN', M .. ':offers')[1] or false
  return at and id_at(at)
end

local function takeable()
  return call('EXISTS', M .. ':offers') == 1
end

--#else
local function push(task)
  call('ZADD', M .. ':ready', 0, place(task))
end

local append = push

local function append_all(scored)
  many('ZADD', M .. ':ready', scored)
end

local function pop_some(limit)
  if META.paused and META.paused + 0 > now then return {} end
  local scored, ids = call('ZPOPMIN', M .. ':ready', limit), {}
  for n = 1, #scored, 2 do ids[#ids + 1] = string.format('%d', id_at(scored[n])) end
  return ids, false, scored
end

local function unpop(ids, first, scored)
  for n = #ids, first, -1 do
    call('ZADD', M .. ':ready', 0, scored[2 * n - 1])
    ids[n] = nil
  end
end

local function pull(task)
  call('ZREM', M .. ':ready', place(task))
end

local function pop()
  if META.paused and META.paused + 0 > now then return false end
  local at = call('ZPOPMIN', M .. ':ready')[1] or false
  return at and id_at(at)
end

local function takeable()
  return call('EXISTS', M .. ':ready') == 1
end
--#end
