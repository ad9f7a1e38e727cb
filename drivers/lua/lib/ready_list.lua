-- Ready tasks of drivers that order them by id.
--
-- ':ready' is a list of ids, to which a put appends. A released task goes to the sorted set ':back', which has its
-- place. An id may remain in the list after its task has left. META.loose counts the strays: these stale ids, and the
-- tasks in ':back'. While there are none, scripts look for neither.
--#if LIST
local function append_all(ids)
  many('RPUSH', M .. ':ready', ids)
end

-- The number of strays, and of stale ids that a script skips at most.
local strays, skips = (META.loose or 0) + 0, 1000

local function add_strays(by)
  strays = call('HINCRBY', M, 'loose', by)
end

local function push(task)
  add_strays(1)
  call('ZADD', M .. ':back', 0, place(task))
end

-- True if an id in the list belongs to a ready task.
local function is_ready_id(id)
  local value = call('HGET', M .. ':tasks', id)
  if not value or byte(value, 1) % 4 ~= 0 then return false end
  return not call('ZSCORE', M .. ':taken', id)
end

local function pull(task)
  if call('ZREM', M .. ':back', place(task)) == 1 then return add_strays(-1) end
  -- Leave a stale id in the list, unless it is near the end.
  if META.next - task.id < 100 and call('LREM', M .. ':ready', -1, task.id) == 1 then return end
  add_strays(1)
end

-- Return the id of the first task, as pop.lua does, if `strays` is not 0. `popped`: the ids (numbers) that this call
-- has popped but not taken yet. Such a task may still be in the list if it came from ':back'.
local function pop_slow(popped)
  local back = call('ZRANGE', M .. ':back', 0, 0)[1]
  local first = back and id_at(back)
  while skips > 0 do
    local id = tonumber(call('LINDEX', M .. ':ready', HEAD) or nil)
    if first and (not id or first == id or (first > id) == NEWEST_FIRST) then
      call('ZREM', M .. ':back', back)
      add_strays(-1)
      return first
    end
    if not id then return false end
    call(POP, M .. ':ready')
    if is_ready_id(id) and not (popped and popped[id]) then return id end
    add_strays(-1)
    skips = skips - 1
  end
end

-- Return the ids of the first tasks, at most `limit`; true if stale ids have ended the search; and an argument for
-- `unpop`.
local function pop_some(limit)
  if META.paused and META.paused + 0 > now then return {} end
--#if RATED
  limit = math.min(limit, tokens())
  if limit == 0 then return {} end
--#end
  if strays == 0 then return call(POP, M .. ':ready', limit) or {} end
--#slow
  local ids, popped = {}, {}
  for n = 1, limit do
    local id = pop_slow(popped)
    if not id then return ids, id == nil end
    ids[n] = string.format('%d', id)
    popped[id + 0] = true
  end
  return ids
--#fast
end

-- Return the tasks from `first` on to their places.
local function unpop(ids, first)
  for n = #ids, first, -1 do
    if strays == 0 then call(UNPOP, M .. ':ready', ids[n]) else push({ id = ids[n] }) end
    ids[n] = nil
  end
end

local function takeable()
  return call('EXISTS', M .. ':ready', M .. ':back') > 0
end

-- Remove stale ids if there are many and more than tasks: some in each call, and twice as many as this call has made.
-- They are popped from the beginning of the list. Ready tasks among them go to ':back', which keeps their order.
local function remove_stale()
  local stale = strays - call('ZCARD', M .. ':back')
  if stale < 1000 or stale < 2 * call('HLEN', M .. ':tasks') then return end
  local left, size, by = 500 + 2 * math.max(0, strays - (META.loose or 0)), 0, 0
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
  call('HINCRBY', M, 'loose', by)
end
--#end
