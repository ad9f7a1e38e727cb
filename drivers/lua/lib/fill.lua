-- The number of tasks in each lane, in any state: the hash ':fill'. Only for tubes whose lanes have or had a
-- capacity.
--#if LANE_ROOM
-- True if tasks have left a lane in ':crowded', for which callers wait.
local freed

-- Subtract tasks that have left a lane.
local function leave_lane(name, count)
  if call('HINCRBY', M .. ':fill', name, -count) <= 0 then call('HDEL', M .. ':fill', name) end
  if META.filling and call('ZREM', M .. ':crowded', name) == 1 then freed = true end
end

-- Add new tasks: `new` maps each lane to the number of its new tasks.
local function fill_lanes(new)
  for name, count in pairs(new) do call('HINCRBY', M .. ':fill', name, count) end
end

-- Return the capacity of a lane; 0: unlimited.
local function capacity_of(name)
--#if PACED
  local record = call('HGET', M .. ':lanes', name)
  if record and byte(record, 1) == 255 then
    local own = select(#PACE, cmsgpack.unpack(sub(record, 2)))
    if (own or -1) >= 0 then return own end
  end
--#end
  return LANE_CAPACITY
end
--#end
