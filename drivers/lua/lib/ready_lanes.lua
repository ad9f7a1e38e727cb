-- Ready tasks of drivers with lanes.
--#if LANE
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
  local at = call('ZPOPMIN', M .. ':offers')[1]
  if not at then return false end
  -- As id_at: each take would pay for its definition.
  local id = unpack_struct('>I6', at, #at - 5)
  return NEWEST_FIRST and 281474976710655 - id or id
end

local function takeable()
  return call('EXISTS', M .. ':offers') == 1
end
--#end
