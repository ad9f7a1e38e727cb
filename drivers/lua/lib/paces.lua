-- Rate limits and round-robin order of lanes, as in rate_limits.py: for tubes that have or had such options. The field
-- META.pacing has the options of the tube: interval, jitter, max_in_flight, '1' for round-robin order, '1' if the
-- interval counts from the end of a run as well, and the burst if it is not 1.
--
-- The record of a lane in ':lanes' then is byte 255, with which no lane number begins, and the fields of PACE. A lane
-- in cooldown or blocked is in ':rests' by the moment when that ends, its field `cooldown`, and offers no task. A lane
-- that may start, but not with its full burst, is there by the moment when the burst is full; its field `free` is 1.
--#if PACES
local PACE = {
  'key', 'taken', 'head', 'cooldown', 'noted', 'interval', 'most', 'blocked',
  'at', 'id', 'attempts', 'turn', 'at_before', 'id_before', 'attempts_before', 'turn_before',
  'from', 'reason', 'burst', 'free',
  'capacity',  --#if LANE_ROOM
}

local function is_full()
  return (pace.cooldown > 0 and pace.free == 0) or pace.taken >= (pace.most > 0 and pace.most or pace.tube_most)
end

-- Read the pace of `lane`, and add `by` to its number of taken tasks. `popped`: its head is no longer on offer, but
-- not taken yet.
local function read_pace(by, popped)
  local interval, jitter, most, rounds, from, burst = string.match(META.pacing or '0 0 1 0 0', '(%S+) (%S+) (%S+) (%S+) (%S+) ?(%S*)')
  -- -1 means that a field is not set; 0 means no limit, no turn or no moment.
  pace = {
    key = '', taken = 0, head = '', cooldown = 0, noted = 0, interval = -1, most = 0, blocked = 0,
    at = -1, id = -1, attempts = 0, turn = 0, at_before = -1, id_before = -1, attempts_before = 0, turn_before = 0,
    from = -1, reason = '', burst = 0, free = 0,
    capacity = -1,  --#if LANE_ROOM
  }
  lane_record = call('HGET', M .. ':lanes', lane)
  if lane_record and byte(lane_record, 1) == 255 then
    local fields = { cmsgpack.unpack(sub(lane_record, 2)) }
    -- The record may be older than the last fields.
    for n = 1, #fields do pace[PACE[n]] = fields[n] end
  elseif lane_record then
    -- The record is older than the paces of the tube.
    local head = sub(lane_record, 2)
    if byte(lane_record, 1) ~= 254 then pace.key, head = sub(lane_record, 1, 5), sub(lane_record, 6) end
    if popped or call('ZSCORE', M .. ':offers', head) then pace.head = head else pace.taken = 1 end
  end
  pace.tube_interval, pace.jitter, pace.tube_most, pace.rounds, pace.tube_from = interval + 0, jitter + 0, most + 0, rounds == '1', from + 0
  pace.tube_burst = tonumber(burst) or 1
  pace.taken = pace.taken + by
  pace.full = is_full()
  lane_key = pace.key ~= '' and pace.key
  lane_taken, lane_head = pace.full, pace.head ~= '' and pace.head
end

-- Give the lane the last turn in the round.
local function give_turn()
  if pace.rounds then pace.turn, pace.noted = call('HINCRBY', M, 'rounds', 1), 1 end
end

-- Return the lane's interval, and the number of takes that may start at once.
local function lane_rate()
  local burst = pace.burst > 0 and pace.burst or pace.tube_burst
  if (pace.from >= 0 and pace.from or pace.tube_from) == 1 then burst = 1 end
  return pace.interval >= 0 and pace.interval or pace.tube_interval, burst
end

-- Return the moment at which the burst is full again.
local function full_at(interval)
  if interval == 0 or pace.at < 0 then return 0 end
  return pace.at + with_jitter(interval, pace.jitter, 0, pace.id, pace.attempts)
end

-- Note that a task of the lane has started.
local function note_start(id, attempts)
  if pace.tube_interval > 0 then pace.noted = 1 end
  if pace.noted == 0 then return end
  local interval, burst = lane_rate()
  local at = burst > 1 and math.max(now, full_at(interval)) or now
  pace.at_before, pace.id_before, pace.attempts_before, pace.turn_before = pace.at, pace.id, pace.attempts, pace.turn
  pace.at, pace.id, pace.attempts = at, tonumber(id), attempts
  give_turn()
end

-- Undo the start of a task whose take does not count. `attempts`: the number without this take.
local function undo_start(id, attempts)
  if pace.id ~= tonumber(id) or pace.attempts ~= attempts + 1 then return end
  pace.at, pace.id, pace.attempts, pace.turn = pace.at_before, pace.id_before, pace.attempts_before, pace.turn_before
  pace.at_before, pace.id_before, pace.attempts_before, pace.turn_before = -1, -1, 0, 0
  -- The starts before it still count in a burst: assume that they came evenly.
  local interval, burst = lane_rate()
  if burst > 1 and interval > 0 then pace.at_before = pace.at - interval end
  if lane_head and pace.turn == 0 then give_turn() end
  if lane_head then call('ZADD', M .. ':offers', pace.turn, lane_head) end
end

-- Set or end the cooldown of the lane.
local function update_cooldown()
  local interval, burst = lane_rate()
  local lead = (burst - 1) * interval
  -- A later start means that the clock was set back, or the limits have changed.
  pace.at = math.min(pace.at, now + lead)
  local full = full_at(interval)
  local moment = math.max(pace.blocked, full - lead)
  pace.free = moment <= now and full > now and 1 or 0
  -- A block that has ended must not return when the clock is set back.
  if moment <= now then moment, pace.blocked = pace.free == 1 and full or 0, 0 end
  if moment > 0 and moment ~= pace.cooldown then
    call('ZADD', M .. ':rests', moment, lane)
    --#include note_due
  elseif moment == 0 and pace.cooldown > 0 then
    call('ZREM', M .. ':rests', lane)
  end
  pace.cooldown = moment
end

-- Note that a run has ended: with interval_from='ack' the interval starts again.
local function note_end()
  if (pace.from >= 0 and pace.from or pace.tube_from) == 0 then return end
  if pace.tube_interval > 0 then pace.noted = 1 end
  if pace.noted == 0 then return end
  pace.at, pace.at_before = now, now
  update_cooldown()
end

-- Offer the head of the lane if one may be taken, and write the lane's record.
local function write_pace()
  local full = is_full()
  if lane_head and full then
    lane_key = lane_key or pack('>I5', call('HINCRBY', M, 'lanes', 1))
    call('ZREM', M .. ':offers', lane_head)
    call('ZADD', M .. ':behind', 0, lane_key .. lane_head)
    lane_head = false
  elseif lane_key and not lane_head and not full then
    lane_head = next_in_lane()
    if lane_head then
      call('ZREM', M .. ':behind', lane_key .. lane_head)
      call('ZADD', M .. ':offers', pace.turn, lane_head)
    end
  end
  if pace.cooldown == 0 and pace.taken == 0 and not lane_head then
--#if LANE_ROOM
    if pace.interval < 0 and pace.most == 0 and pace.from < 0 and pace.burst == 0 and pace.capacity < 0 then
--#else
    if pace.interval < 0 and pace.most == 0 and pace.from < 0 and pace.burst == 0 then
--#end
      if lane_record then call('HDEL', M .. ':lanes', lane) end
      return
    end
    pace.reason = ''
    pace.at, pace.id, pace.attempts, pace.turn = -1, -1, 0, 0
    pace.at_before, pace.id_before, pace.attempts_before, pace.turn_before = -1, -1, 0, 0
  end
  pace.key, pace.head = lane_key or '', lane_head or ''
  local fields = {}
  for n = 1, #PACE do fields[n] = pace[PACE[n]] end
  call('HSET', M .. ':lanes', lane, '\255' .. cmsgpack.pack(unpack(fields)))
end
--#end
