-- Ready tasks of the other drivers: the sorted set ':ready' has their places.
--#unless LIST|LANE
local function push(task)
  call('ZADD', M .. ':ready', 0, place(task))
end

local function append_all(scored)
  many('ZADD', M .. ':ready', scored)
end

local function pop_some(limit)
  if META.paused and META.paused + 0 > now then return {} end
--#if RATED
  limit = math.min(limit, tokens())
  if limit == 0 then return {} end
--#end
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
  local id
  --#include pop
  return id
end

local function takeable()
  return call('EXISTS', M .. ':ready') == 1
end
--#end
