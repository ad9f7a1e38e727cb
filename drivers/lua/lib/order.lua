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

local function id_at(place)
  local id = unpack_struct('>I6', place, #place - 5)
  return NEWEST_FIRST and 281474976710655 - id or id
end

--#if LIST
-- Tasks come by their ids alone: ':ready' is a list of them, to which a put appends. What comes back to its own place
-- goes to the sorted set ':back'. An id may stay in the list after its task has left: `loose` counts those, plus what is
-- in ':back', so that nobody looks for either where there is none.
local function append(task)
  call('RPUSH', M .. ':ready', task.id)
end

local loose = tonumber(META.loose or 0)

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

-- The id of the first task; false: there is none; nil: not found yet, there were too many stale ones.
local function pop()
  if loose == 0 then return call(POP, M .. ':ready') end
--#slow
  local back = call('ZRANGE', M .. ':back', 0, 0)[1]
  local returned = back and id_at(back)
  for _ = 1, 1000 do
    local id = tonumber(call('LINDEX', M .. ':ready', HEAD) or nil)
    if returned and (not id or (NEWEST_FIRST and returned >= id) or (not NEWEST_FIRST and returned <= id)) then
      call('ZREM', M .. ':back', back)
      loosen(-1)
      return returned
    end
    if not id then return false end
    call(POP, M .. ':ready')
    if counts(id) then return id end
    loosen(-1)
  end
--#fast
end

local function takeable()
  return call('EXISTS', M .. ':ready', M .. ':back') > 0
end

-- Stale ids are forgotten when they are more than the tasks, and many.
local function tidy()
  if loose < 2 * call('HLEN', M .. ':tasks') then return end
  local ids = call('LRANGE', M .. ':ready', 0, -1)
  call('DEL', M .. ':ready')
  for _, id in ipairs(ids) do
    if counts(id) and not call('ZSCORE', M .. ':back', place({ id = id })) then call('RPUSH', M .. ':ready', id) end
  end
  loose = call('ZCARD', M .. ':back')
  note('loose', loose)
end

--#elif LANE
-- ':lanes' has a record per lane that has tasks: its number, how many tasks it has, whether one is taken, and the place
-- of the one on offer. ':offers' has the best ready task of each free lane, ':behind' the others by lane and place.
local lane

local function enter_lane(task)
  local name = task.lane or 'nil'
  if lane and lane.name == name then return end
  local record = call('HGET', M .. ':lanes', name)
  if record then
    local number, living, taken = unpack_struct('>I5I5B', record)
    lane = { name = name, number = number, living = living, taken = taken == 1, head = #record > 11 and sub(record, 12) }
  else
    lane = { name = name, number = call('HINCRBY', M, 'lanes', 1), living = 0, taken = false, head = false }
  end
end

local function leave_lane()
  if lane.living == 0 then
    call('HDEL', M .. ':lanes', lane.name)
  else
    local record = pack('>I5I5B', lane.number, lane.living, lane.taken and 1 or 0) .. (lane.head or '')
    call('HSET', M .. ':lanes', lane.name, record)
  end
  lane = nil
end

local function lane_key(number)
  return pack('>I5', number)
end

local function push(task)
  local at, key = place(task), lane_key(lane.number)
  if lane.taken then
    call('ZADD', M .. ':behind', 0, key .. at)
  elseif not lane.head then
    -- Just freed, or new: others may stand behind.
    local best = lane.living > 1 and call('ZRANGEBYLEX', M .. ':behind', '[' .. key, '(' .. lane_key(lane.number + 1), 'LIMIT', 0, 1)[1]
    if best and sub(best, 6) < at then
      call('ZADD', M .. ':behind', 0, key .. at)
    else
      lane.head = at
      call('ZADD', M .. ':offers', 0, at)
    end
  elseif lane.head < at then
    call('ZADD', M .. ':behind', 0, key .. at)
  else
    call('ZREM', M .. ':offers', lane.head)
    call('ZADD', M .. ':behind', 0, key .. lane.head)
    lane.head = at
    call('ZADD', M .. ':offers', 0, at)
  end
end

local append = push

local function pull(task)
  local at = place(task)
  if lane.head == at then
    lane.head = false
    call('ZREM', M .. ':offers', at)
  else
    call('ZREM', M .. ':behind', lane_key(lane.number) .. at)
  end
end

-- Put the best task that stands behind a free lane on offer.
local function offer()
  if lane.taken or lane.head or lane.living == 0 then return end
  local key = lane_key(lane.number)
  local best = call('ZRANGEBYLEX', M .. ':behind', '[' .. key, '(' .. lane_key(lane.number + 1), 'LIMIT', 0, 1)[1]
  if best then
    call('ZREM', M .. ':behind', best)
    lane.head = sub(best, 6)
    call('ZADD', M .. ':offers', 0, lane.head)
  end
end

local function pop()
  local at = call('ZPOPMIN', M .. ':offers')[1]
  return at and id_at(at) or false
end

local function takeable()
  return call('EXISTS', M .. ':offers') == 1
end

--#else
local function push(task)
  call('ZADD', M .. ':ready', 0, place(task))
end

local append = push

local function pull(task)
  call('ZREM', M .. ':ready', place(task))
end

local function pop()
  local at = call('ZPOPMIN', M .. ':ready')[1]
  return at and id_at(at) or false
end

local function takeable()
  return call('EXISTS', M .. ':ready') == 1
end
--#end
