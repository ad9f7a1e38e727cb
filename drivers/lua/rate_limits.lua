-- Rate limits of lanes and their turns in a round, as in rate_limits.py: for tubes that have or had such options. The
-- field `rate_limits` of the meta hash has the options of the tube: interval, jitter, max_in_flight, '1' for round-robin
-- order, '1' if the interval counts from the end of a run as well, and the burst if it is not 1.
--
-- The record of a lane in ':lanes' then is byte 255, with which no lane number begins, and the fields of FIELDS. A lane
-- in cooldown or blocked is in ':cooldowns' by the moment when that ends, its field `cooldown`, and offers no task. A lane
-- that may start, but not with its full burst, is there by the moment when the burst is full; its field `free` is 1.
local Call = require 'call'
local Chance = require 'chance'
local Pending = require 'pending'

local sub = string.sub

local RateLimits = {}

-- The fields of a record, in order. A lane without limits of its own that is not blocked has only the first 13.
-- `capacity` is only there in tubes that count the tasks of their lanes. The last one, `weight`, is only there in tubes with
-- round-robin order. While a lane keeps its turn for more takes, the fraction of `turn` counts them, as in rate_limits.py.
local FIELDS = {
  'key', 'taken', 'head', 'cooldown', 'noted',
  'at', 'id', 'attempts', 'turn', 'at_before', 'id_before', 'attempts_before', 'turn_before',
  'interval', 'most', 'blocked', 'from', 'reason', 'burst', 'free', 'capacity', 'weight',
}
RateLimits.FIELDS, RateLimits.FEW, RateLimits.CAPACITY = FIELDS, 13, 21
-- The stored options of a tube without limits.
RateLimits.NONE = '0 0 1 0 0'

-- A power of two above the largest weight.
local TURN = 128

-- The limits of the tube whose lane was read last.
local limits = {}

-- Return the limits of the tube.
function RateLimits.of_tube()
  local words = Call.rate_limits or RateLimits.NONE
  if limits.words ~= words then
    local interval, jitter, most, rounds, from, burst = string.match(words, '(%S+) (%S+) (%S+) (%S+) (%S+) ?(%S*)')
    limits = {
      words = words, interval = interval + 0, jitter = jitter + 0, most = most + 0, rounds = rounds == '1', from = from + 0,
      burst = tonumber(burst) or 1,
    }
  end
  return limits
end

-- Return the rate of a lane without a record. -1: the limit of the tube; 0: no limit, no turn or no moment. `at`: as in
-- rate_limits.py.
function RateLimits.new()
  RateLimits.of_tube()
  return {
    key = '', taken = 0, head = '', cooldown = 0, noted = 0, interval = -1, most = 0, blocked = 0,
    at = -math.huge, id = -1, attempts = 0, turn = 0,
    at_before = -math.huge, id_before = -1, attempts_before = 0, turn_before = 0,
    from = -1, reason = '', burst = 0, free = 0, capacity = -1, weight = 0,
  }
end

-- Return the rate in a record with byte 255. Here and in `encode` a loop over the fields would take three times as long.
function RateLimits.decode(record)
  RateLimits.of_tube()
  local key, taken, head, cooldown, noted, at, id, attempts, turn, at_before, id_before, attempts_before, turn_before,
    interval, most, blocked, from, reason, burst, free, capacity, weight = cmsgpack.unpack(sub(record, 2))
  return {
    key = key, taken = taken, head = head, cooldown = cooldown, noted = noted,
    at = at, id = id, attempts = attempts, turn = turn, at_before = at_before, id_before = id_before,
    attempts_before = attempts_before, turn_before = turn_before,
    interval = interval or -1, most = most or 0, blocked = blocked or 0, from = from or -1, reason = reason or '',
    burst = burst or 0, free = free or 0, capacity = capacity or -1, weight = weight or 0,
  }
end

-- True if a lane has no limit of its own.
local function is_default(rate)
  return rate.interval < 0 and rate.most == 0 and rate.from < 0 and rate.burst == 0 and rate.capacity < 0 and rate.weight == 0
end

RateLimits.is_default = is_default

function RateLimits.encode(rate)
  if is_default(rate) and rate.blocked == 0 and rate.free == 0 and rate.reason == '' then
    return '\255' .. cmsgpack.pack(
      rate.key, rate.taken, rate.head, rate.cooldown, rate.noted,
      rate.at, rate.id, rate.attempts, rate.turn, rate.at_before, rate.id_before, rate.attempts_before, rate.turn_before)
  end
  return '\255' .. cmsgpack.pack(
    rate.key, rate.taken, rate.head, rate.cooldown, rate.noted,
    rate.at, rate.id, rate.attempts, rate.turn, rate.at_before, rate.id_before, rate.attempts_before, rate.turn_before,
    rate.interval, rate.most, rate.blocked, rate.from, rate.reason, rate.burst, rate.free,
    Call.counts_lanes() and rate.capacity or nil, limits.rounds and rate.weight or nil)
end

-- True if no task of the lane may start.
function RateLimits.is_full(rate)
  return (rate.cooldown > 0 and rate.free == 0) or rate.taken >= (rate.most > 0 and rate.most or limits.most)
end

-- True if its interval counts from the end of a run as well.
local function from_end(rate)
  return (rate.from >= 0 and rate.from or limits.from) == 1
end

-- Return the interval of a lane, and the number of takes that may start at once.
function RateLimits.interval_of(rate)
  local burst = rate.burst > 0 and rate.burst or limits.burst
  return rate.interval >= 0 and rate.interval or limits.interval, from_end(rate) and 1 or burst
end

local function end_of_interval(rate, interval)
  return rate.at + Chance.apply_jitter(interval, limits.jitter, 0, rate.id, rate.attempts)
end

-- Give the lane the last turn in the round.
function RateLimits.give_turn(rate)
  if limits.rounds then rate.turn, rate.noted = Call.increment('rounds'), 1 end
end

-- Give the lane its turn after a take: the same one, until it has had `weight` takes in it.
local function give_next_turn(rate)
  if rate.weight > 1 and rate.turn > 0 and rate.turn % 1 * TURN + 1 < rate.weight then
    rate.turn = rate.turn + 1 / TURN
  else
    RateLimits.give_turn(rate)
  end
end

-- Note that a task of the lane has started.
function RateLimits.start(rate, id, attempts)
  if limits.interval > 0 then rate.noted = 1 end
  if rate.noted == 0 then return end
  local interval, burst = RateLimits.interval_of(rate)
  local at = math.max(Call.now - (burst - 1) * interval, end_of_interval(rate, interval))
  rate.at_before, rate.id_before, rate.attempts_before, rate.turn_before = rate.at, rate.id, rate.attempts, rate.turn
  rate.at, rate.id, rate.attempts = at, tonumber(id), attempts
  give_next_turn(rate)
end

-- Undo the start of a task whose take does not count. `attempts`: the number without this take. Return true if it was
-- the last start.
function RateLimits.undo_start(rate, id, attempts)
  if rate.id ~= tonumber(id) or rate.attempts ~= attempts + 1 then return false end
  rate.at, rate.id, rate.attempts, rate.turn = rate.at_before, rate.id_before, rate.attempts_before, rate.turn_before
  rate.at_before, rate.id_before, rate.attempts_before, rate.turn_before = -math.huge, -1, 0, 0
  -- The starts before it still count in a burst: assume that they came evenly.
  local interval, burst = RateLimits.interval_of(rate)
  if burst > 1 and interval > 0 then rate.at_before = rate.at - interval end
  return true
end

-- Set or end the cooldown of the lane `name`.
function RateLimits.apply(rate, name)
  local now = Call.now
  local interval, burst = RateLimits.interval_of(rate)
  -- A start in the future means that the clock was set back.
  rate.at = math.min(rate.at, now)
  local ready = end_of_interval(rate, interval)
  local moment, full = math.max(rate.blocked, ready), ready + (burst - 1) * interval
  rate.free = moment <= now and full > now and 1 or 0
  -- A block that has ended must not return when the clock is set back.
  if moment <= now then moment, rate.blocked = rate.free == 1 and full or 0, 0 end
  if moment > 0 and moment ~= rate.cooldown then
    Pending.add(Call.keys.cooldowns, moment, name)
    Call.note_due(moment)
  elseif moment == 0 and rate.cooldown > 0 then
    Pending.remove(Call.keys.cooldowns, name)
  end
  rate.cooldown = moment
end

-- Note that a run has ended: with interval_from='ack' the interval starts again.
function RateLimits.end_run(rate, name)
  if not from_end(rate) then return end
  if limits.interval > 0 then rate.noted = 1 end
  if rate.noted == 0 then return end
  rate.at, rate.at_before = Call.now, Call.now
  RateLimits.apply(rate, name)
end

-- Forget the last starts of a lane without tasks.
function RateLimits.forget_starts(rate)
  rate.reason = ''
  rate.at, rate.id, rate.attempts, rate.turn = -math.huge, -1, 0, 0
  rate.at_before, rate.id_before, rate.attempts_before, rate.turn_before = -math.huge, -1, 0, 0
end

return RateLimits
