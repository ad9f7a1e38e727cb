-- The tasks of each lane, in tubes whose lanes have a capacity, or had one: ':fill' has how many there are, in whatever state.
--#if LANE_ROOM
-- Whether tasks have left a lane for which callers wait, which ':crowded' names.
local freed

-- So many tasks have left a lane.
local function leave_lane(name, count)
  if call('HINCRBY', M .. ':fill', name, -count) <= 0 then call('HDEL', M .. ':fill', name) end
  if META.filling and call('ZREM', M .. ':crowded', name) == 1 then freed = true end
end

-- So many tasks come into each of these lanes.
local function fill_lanes(new)
  for name, count in pairs(new) do call('HINCRBY', M .. ':fill', name, count) end
end

-- How many tasks have room in a lane; 0: any number.
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
