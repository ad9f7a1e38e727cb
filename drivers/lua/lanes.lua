-- Lanes, and their ready tasks in order.
--
-- ':offers' has the best ready task of each free lane, and ':behind' the other ready tasks by lane and place.
-- ':lanes' has a record of each lane that has a task on offer or a taken one. The record is byte 254 and the place of
-- that task, the head. If other tasks are or were behind it, the record is the lane's number in 5 bytes and then that
-- place, which is empty if it is unknown. A take does not change the record: a head that is not on offer is taken. In
-- a tube with rate limits or round-robin order the record has more fields, and the number of taken tasks is one of them:
-- see rate_limits.lua.
--
-- A move of a task calls `open` before it, then `leave_head` and the functions of the order, and `close` after it. The table
-- `lane` describes the lane between both: name, record, key (its number in bytes), head, full (no task of it may be taken
-- now), rate (in a tube with limits).
local Call = require 'call'
local Lists = require 'lists'
local Pending = require 'pending'
local RateLimits = require 'rate_limits'
local Ready = require 'ready'

local call = redis.call
local pack = struct.pack
local unpack_struct = struct.unpack
local byte = string.byte
local sub = string.sub
local place, precedes = Ready.place, Lists.precedes

local Lanes = {}
local Order = {}
local lane = {}
Lanes.current = lane

-- True if the tube counts the tasks of its lanes, because lanes have or had a capacity. The field `filled` of the meta
-- hash says so in a tube whose own options have no lane_capacity.
function Call.counts_lanes()
  return Call.plan.counts_lanes or Call.filled
end

-- Return the name by which a task's lane is stored.
function Lanes.name_of(task)
  return task.lane or 'nil'
end

-- Return the first place in the lane's part of ':behind', or false if that part is empty.
local function next_in_lane(key)
  local behind = Call.keys.behind
  if Pending.touches(behind, key) then Pending.send(behind) end
  local best = call('ZRANGEBYLEX', behind, '[' .. key, '+', 'LIMIT', 0, 1)[1]
  return best and sub(best, 1, 5) == key and sub(best, 6)
end

Lanes.next_in_lane = next_in_lane

local function new_key()
  Call.lanes = Pending.increment(Call.key, 'lanes', 1)  -- `append_all` may number others in the same call.
  return pack('>I5', Call.lanes)
end

-- Split a record without limits: the number and the head of the lane.
local function split(record)
  if byte(record, 1) == 254 then return false, sub(record, 2) end
  return sub(record, 1, 5), sub(record, 6)
end

-- Read a lane with its rate. `popped`: its head is no longer on offer, but not taken yet.
function Lanes.read_limited(name, popped)
  local record = Pending.get(Call.keys.lanes, name)
  local rate
  if record and byte(record, 1) == 255 then
    rate = RateLimits.decode(record)
  else
    rate = RateLimits.new()
    if record then
      -- The record is older than the limits of the tube.
      local key, head = split(record)
      rate.key = key or ''
      Pending.send(Call.keys.offers)
      if popped or call('ZSCORE', Call.keys.offers, head) then rate.head = head else rate.taken = 1 end
    end
  end
  lane.name, lane.record, lane.rate = name, record, rate
  lane.key, lane.head = rate.key ~= '' and rate.key, rate.head ~= '' and rate.head
  lane.full = RateLimits.is_full(rate)
  return rate
end

-- Read the lane of a task before a move from the state `was` to `to`.
function Lanes.open(task, was, to)
  local name = task.lane or 'nil'
  if Call.rate_limits then
    local rate = Lanes.read_limited(name, to == 't')
    if was == 't' then
      rate.taken = rate.taken - 1
      lane.full = RateLimits.is_full(rate)
      if task.undone and RateLimits.undo_start(rate, task.id, task.attempts) then
        if lane.head and rate.turn == 0 then RateLimits.give_turn(rate) end
        if lane.head then Pending.add(Call.keys.offers, rate.turn, lane.head) end
      end
    end
    if to == 'r' and rate.turn == 0 then RateLimits.give_turn(rate) end
  elseif to ~= 't' then
    -- A taken task remains the head of its lane.
    local record = Pending.get(Call.keys.lanes, name)
    lane.name, lane.record, lane.rate, lane.key, lane.head, lane.full = name, record, false, false, false, false
    if record then lane.key, lane.head = split(record) end
  end
end

-- The head of the lane leaves it: it is taken, or its take ends.
function Lanes.leave_head(was)
  if was == 'r' or not lane.rate then lane.head = false end
end

-- Store the lane after a move.
function Lanes.close(task, was, to)
  if not Call.rate_limits then
    if to ~= 't' then Lanes.store(was == 'r' or was == 't') end
    return
  end
  local rate = lane.rate
  if to == 't' then
    rate.taken = rate.taken + 1
    RateLimits.start(rate, task.id, task.attempts)
    RateLimits.apply(rate, lane.name)
  elseif was == 't' then
    if task.undone then RateLimits.apply(rate, lane.name) else RateLimits.end_run(rate, lane.name) end
  end
  Lanes.store_limited()
end

-- Store a lane without limits. `offers`: if it is free and has no head, offer its next task.
function Lanes.store(offers)
  if offers and lane.key and not lane.head then
    local best = next_in_lane(lane.key)
    if best then
      lane.head = best
      Pending.remove(Call.keys.behind, lane.key .. best)
      Pending.add(Call.keys.offers, 0, best)
    end
  end
  if lane.head then
    local record = (lane.key or '\254') .. lane.head
    if record ~= lane.record then Pending.set(Call.keys.lanes, lane.name, record) end
  elseif lane.record then
    Pending.delete(Call.keys.lanes, lane.name)
  end
end

-- Offer the head of the lane if it may be taken, and store a lane with its rate.
function Lanes.store_limited()
  local rate = lane.rate
  local full = RateLimits.is_full(rate)
  if lane.head and full then
    lane.key = lane.key or new_key()
    Pending.remove(Call.keys.offers, lane.head)
    Pending.add(Call.keys.behind, 0, lane.key .. lane.head)
    lane.head = false
  elseif lane.key and not lane.head and not full then
    lane.head = next_in_lane(lane.key)
    if lane.head then
      Pending.remove(Call.keys.behind, lane.key .. lane.head)
      Pending.add(Call.keys.offers, rate.turn, lane.head)
    end
  end
  if rate.cooldown == 0 and rate.taken == 0 and not lane.head then
    if RateLimits.is_default(rate) then
      if lane.record then Pending.delete(Call.keys.lanes, lane.name) end
      return
    end
    RateLimits.forget_starts(rate)
  end
  rate.key, rate.head = lane.key or '', lane.head or ''
  Pending.set(Call.keys.lanes, lane.name, RateLimits.encode(rate))
end

-- Read, update and store a lane outside of a move.
function Lanes.update(name, change)
  local rate = Lanes.read_limited(name)
  if change then change(rate) end
  RateLimits.apply(rate, name)
  Lanes.store_limited()
end

-- The order of ready tasks ---------------------------------------------------------------------------------------------

-- Add a task to its lane. `first`: the best place of the lane; the task is offered only if its own place comes before
-- that.
local function add(task, first)
  local at = place(task)
  local K = Call.keys
  if lane.rate then
    if lane.full or (first and precedes(first, at)) then
      lane.key = lane.key or new_key()
      Pending.add(K.behind, 0, lane.key .. at)
      return
    end
    if lane.head then
      lane.key = lane.key or new_key()
      Pending.remove(K.offers, lane.head)
      Pending.add(K.behind, 0, lane.key .. lane.head)
    end
    lane.head = at
    Pending.add(K.offers, lane.rate.turn, at)
    return
  end
  -- The lane's head is better, or is taken: queue the task behind it.
  if first and lane.head and precedes(at, first) then Pending.send(K.offers) end
  if first and (precedes(first, at) or (lane.head and call('ZREM', K.offers, lane.head) == 0)) then
    lane.key = lane.key or new_key()
    Pending.add(K.behind, 0, lane.key .. at)
    return
  end
  if lane.head then
    lane.key = lane.key or new_key()
    Pending.add(K.behind, 0, lane.key .. lane.head)
  end
  lane.head = at
  Pending.add(K.offers, 0, at)
end

-- Add a new task.
function Order.append(task)
  add(task, lane.head)
end

-- Add a released task. If its lane was just freed, other tasks may be behind.
function Order.push(task)
  add(task, lane.head or (lane.key and not lane.full and next_in_lane(lane.key)))
end

function Order.pull(task)
  local at = place(task)
  if lane.head == at then
    lane.head = false
    Pending.remove(Call.keys.offers, at)
  else
    Pending.remove(Call.keys.behind, lane.key .. at)
  end
end

Ready.add_pops(Order, 'offers')

-- Read the records of lanes by name: the number and the head of each.
local function read_all(names)
  local records, keys, heads = Lists.collect('HMGET', Call.keys.lanes, names), {}, {}
  for n = 1, #names do
    local record = records[n]
    if record then
      local key, head = split(record)
      keys[names[n]], heads[names[n]] = key or nil, head
    end
  end
  return keys, heads
end

-- Return the distinct names among `lanes`.
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

-- Add new tasks to their lanes, as `append` does for one: for tubes without limits.
function Order.append_all(places, lanes)
  local names, numbered = distinct(lanes), (Call.lanes or 0) + 0
  local keys, heads = read_all(names)
  -- Lanes that get another head, and lanes that get a number.
  local new_head, numbered_now, queued = {}, {}, {}
  local K = Call.keys
  for n = 1, #places do
    local name, at = lanes[n], places[n]
    local head = heads[name]
    local first = not head or (precedes(at, head) and (new_head[name] or call('ZREM', K.offers, head) == 1))
    if head then
      local key = keys[name]
      if not key then
        numbered = numbered + 1
        key = pack('>I5', numbered)
        keys[name], numbered_now[name] = key, true
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
    if new_head[name] or numbered_now[name] then records[#records + 1], records[#records + 2] = name, (keys[name] or '\254') .. head end
  end
  if numbered ~= (Call.lanes or 0) + 0 then
    Call.lanes = numbered
    call('HSET', Call.key, 'lanes', string.format('%.0f', numbered))
  end
  Lists.run('ZADD', K.behind, queued)
  Lists.run('ZADD', K.offers, offers)
  Lists.run('HSET', K.lanes, records)
end

-- Free lanes whose taken tasks have ended: each offers its next task. For tubes without limits.
function Lanes.free_all(lanes)
  local keys = read_all(lanes)
  local gone, offers, dequeued, records = {}, {}, {}, {}
  for n = 1, #lanes do
    local name = lanes[n]
    local key = keys[name]
    local best = key and next_in_lane(key)
    if best then
      dequeued[#dequeued + 1] = key .. best
      offers[#offers + 1], offers[#offers + 2] = '0', best
      records[#records + 1], records[#records + 2] = name, key .. best
    else
      gone[#gone + 1] = name
    end
  end
  local K = Call.keys
  Lists.run('HDEL', K.lanes, gone)
  Lists.run('ZREM', K.behind, dequeued)
  Lists.run('ZADD', K.offers, offers)
  Lists.run('HSET', K.lanes, records)
end

-- Take `task`, which is ready in its lane, as if it were the head of the lane. False: no task of the lane may be taken.
function Lanes.make_head(task)
  local K = Call.keys
  if Call.rate_limits then
    Lanes.read_limited(Lanes.name_of(task))
    if lane.full then return false end
  else
    Lanes.open(task, 'r', 'r')
    -- If the head of the lane is not on offer, a task of the lane is taken.
    if not lane.head or not call('ZSCORE', K.offers, lane.head) then return false end
  end
  local at = place(task)
  if lane.head then call('ZREM', K.offers, lane.head) end
  if lane.head ~= at then
    call('ZREM', K.behind, lane.key .. at)
    if lane.head then call('ZADD', K.behind, 0, lane.key .. lane.head) end
    if not Call.rate_limits then call('HSET', K.lanes, lane.name, lane.key .. at) end
  end
  return true
end

-- The number of tasks in each lane, in any state: the hash ':fill' ----------------------------------------------------

-- Subtract tasks that have left a lane; note it if callers wait for room in it (':crowded').
function Lanes.subtract(name, count)
  local K = Call.keys
  if Pending.increment(K.fill, name, -count) <= 0 then Pending.delete(K.fill, name) end
  if Call.filling and call('ZREM', K.crowded, name) == 1 then Call.values.freed = true end
end

-- Add new tasks: `new` maps each lane to the number of its new tasks.
function Lanes.add_counts(new)
  for name, count in pairs(new) do Pending.increment(Call.keys.fill, name, count) end
end

-- Return the capacity of a lane; 0: unlimited.
function Lanes.capacity_of(name)
  if Call.rate_limits then
    local record = Pending.get(Call.keys.lanes, name)
    if record and byte(record, 1) == 255 then
      local own = select(RateLimits.CAPACITY, cmsgpack.unpack(sub(record, 2)))
      if (own or -1) >= 0 then return own end
    end
  end
  return Call.plan.lane_capacity
end

-- The number in a lane's key.
function Lanes.number_of(key)
  return unpack_struct('>I5', key)
end

Ready.add_order('lanes', Order)

return Lanes
