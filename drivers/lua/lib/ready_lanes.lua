-- Ready tasks of drivers with lanes.
--#if LANE
-- ':offers' has the best ready task of each free lane, ':behind' the other ready ones by lane and place. ':lanes' has a
-- record per lane that is taken or has a task on offer: its number in 5 bytes, then the place of the one on offer.
-- In a tube with paces, `pace`, it has more: see paces.lua.
local lane, lane_record, lane_key, lane_taken, lane_head, pace

local function behind()
  --#include behind
  return best
end

-- One that comes back: where its lane was just freed, others may stand behind.
local function push(task)
  local first = not lane_head and lane_key and not lane_taken and behind() or lane_head
  --#include append
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
  local id
  --#include pop
  return id
end

local function takeable()
  return call('EXISTS', M .. ':offers') == 1
end
--#end
