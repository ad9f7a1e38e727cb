-- Ready tasks of drivers that do not use a list, and the functions that are the same for all drivers.
--#unless LIST|LANE
-- The sorted set ':ready' has the places of the ready tasks.
local function push(task)
  call('ZADD', M .. ':ready', 0, place(task))
end

local function append_all(scored)
  many('ZADD', M .. ':ready', scored)
end

local function pull(task)
  call('ZREM', M .. ':ready', place(task))
end
--#end
--#unless LIST
local function pop_some(limit)
  if META.paused and META.paused + 0 > now then return {} end
--#if RATED
  limit = math.min(limit, tokens())
  if limit == 0 then return {} end
--#end
  local scored, ids = call('ZPOPMIN', M .. READY, limit), {}
  for n = 1, #scored, 2 do ids[#ids + 1] = string.format('%d', id_at(scored[n])) end
  return ids, false, scored
end

local function unpop(ids, first, scored)
  for n = #ids, first, -1 do
    call('ZADD', M .. READY, 0, scored[2 * n - 1])
    ids[n] = nil
  end
end

local function takeable()
  return call('EXISTS', M .. READY) == 1
end
--#end

local function pop()
  local id
  --#include pop
  return id
end
