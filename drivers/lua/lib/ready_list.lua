-- Ready tasks of drivers that take them in the order of their ids.
--#if LIST
-- Tasks come by their ids alone: ':ready' is a list of them, to which a put appends. What comes back to its own place
-- goes to the sorted set ':back'. An id may stay in the list after its task has left: `loose` counts those, plus what is
-- in ':back', so that nobody looks for either where there is none.
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

-- The id of the first task, as pop.lua leaves it, where some have come back or are stale. `popped`: those that this call has
-- got and that are not taken yet, by their ids as numbers: one that had come back stands in the list too.
local function pop_loose(popped)
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
end

local function pop()
  local id
  --#include pop
  return id
end

-- The ids of the first tasks, up to so many; whether not all were found, since there were too many stale ones; and what
-- `unpop` has to know of them.
local function pop_some(limit)
  if META.paused and META.paused + 0 > now then return {} end
  if loose == 0 then return call(POP, M .. ':ready', limit) or {} end
--#slow if loose ~= 0
  local ids, popped = {}, {}
  for n = 1, limit do
    local id = pop_loose(popped)
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
--#end
