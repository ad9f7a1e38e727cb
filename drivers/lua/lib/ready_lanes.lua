-- Ready tasks of drivers with lanes.
--#if LANE
-- ':offers' has the best ready task of each free lane, and ':behind' the other ready tasks by lane and place.
-- ':lanes' has a record of each lane that has a task on offer or a taken one. The record is byte 254 and the place of
-- that task, the head. If other tasks are or were behind it, the record is the lane's number in 5 bytes and then that
-- place, which is empty if it is unknown. A take does not change the record: a head that is not on offer is taken. In
-- a tube with paces, `pace`, the record has more fields, and the number of taken tasks is one of them: see paces.lua.
local lane, lane_record, lane_key, lane_taken, lane_head, pace

local function next_in_lane()
  --#include next_in_lane
  return best
end

-- Add a released task. If its lane was just freed, other tasks may be behind.
local function push(task)
  local first = lane_head or (lane_key and not lane_taken and next_in_lane())
  --#include append
end

-- Read the records of lanes by name: the number and the head of each, as in lane_before.lua.
local function read_lanes(names)
  local records, keys, heads = all_of('HMGET', M .. ':lanes', names), {}, {}
  for n = 1, #names do
    local record = records[n]
    if record and byte(record, 1) == 254 then
      heads[names[n]] = sub(record, 2)
    elseif record then
      keys[names[n]], heads[names[n]] = sub(record, 1, 5), sub(record, 6)
    end
  end
  return keys, heads
end

-- Return the distinct names in `lanes`.
local function distinct(lanes)
  local names, seen = {}, {}
  for n = 1, #lanes do
    local name = lanes[n]
    if not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  return names
end

-- Add new tasks to their lanes, as append.lua does for one.
local function append_all(places, lanes)
  local names, numbered = distinct(lanes), (META.lanes or 0) + 0
  local keys, heads = read_lanes(names)
  -- Lanes that get another head, and lanes that get a number.
  local new_head, new_key, queued = {}, {}, {}
  for n = 1, #places do
    local name, at = lanes[n], places[n]
    local head = heads[name]
    local first = not head or (at < head and (new_head[name] or call('ZREM', M .. ':offers', head) == 1))
    if head then
      local key = keys[name]
      if not key then
        numbered = numbered + 1
        key = pack('>I5', numbered)
        keys[name], new_key[name] = key, true
      end
      queued[#queued + 1], queued[#queued + 2] = '0', key .. (first and head or at)
    end
    if first then heads[name], new_head[name] = at, true end
  end
  local offers, records = {}, {}
  for n = 1, #names do
    local name = names[n]
    local head = heads[name]
    if new_head[name] then offers[#offers + 1], offers[#offers + 2] = '0', head end
    if new_head[name] or new_key[name] then records[#records + 1], records[#records + 2] = name, (keys[name] or '\254') .. head end
  end
  if numbered ~= (META.lanes or 0) + 0 then call('HSET', M, 'lanes', string.format('%.0f', numbered)) end
  many('ZADD', M .. ':behind', queued)
  many('ZADD', M .. ':offers', offers)
  many('HSET', M .. ':lanes', records)
end

-- Free lanes whose taken tasks have ended: each offers its next task.
local function free_lanes(lanes)
  local keys = read_lanes(lanes)
  local gone, offers, dequeued, records = {}, {}, {}, {}
  for n = 1, #lanes do
    local name = lanes[n]
    lane_key = keys[name]
    local best = lane_key and next_in_lane()
    if best then
      dequeued[#dequeued + 1] = lane_key .. best
      offers[#offers + 1], offers[#offers + 2] = '0', best
      records[#records + 1], records[#records + 2] = name, lane_key .. best
    else
      gone[#gone + 1] = name
    end
  end
  many('HDEL', M .. ':lanes', gone)
  many('ZREM', M .. ':behind', dequeued)
  many('ZADD', M .. ':offers', offers)
  many('HSET', M .. ':lanes', records)
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
--#end
