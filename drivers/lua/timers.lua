-- Due events, as in timers.py and `Engine.expire`: the ends of delays, ttr and ttl (':due'), of cooldowns and blocks of
-- lanes (':rests'), of the leases of sessions (':leases'), and of a pause.
--
-- They happen in the order of their moments, at most `plan.batch` per call, which takes about 10 ms. Meanwhile `Call.now`
-- is the moment of the current one. The field `soonest` of the meta hash is the first of all, so a call looks for due
-- events only if it has passed.
local Call = require 'call'
local Bucket = require 'bucket'
local Entry = require 'entry'
local Engine = require 'engine'
local Lanes = require 'lanes'
local RateLimits = require 'rate_limits'
local Sessions = require 'sessions'

local call = redis.call
local unpack_struct = struct.unpack

local Timers = {}

-- Process a page of the lanes or tasks, whose cursor is in a field of the meta hash. Return true if there are more.
local function process_page(field, key, count, act)
  local cursor = call('HGET', Call.key, field)
  if not cursor then return false end
  local page = call('HSCAN', key, cursor, 'COUNT', count)
  for n = 1, #page[2], 2 do act(page[2][n], page[2][n + 1]) end
  if page[1] == '0' then
    call('HDEL', Call.key, field)
    return false
  end
  call('HSET', Call.key, field, page[1])
  return true
end

-- Apply changed limits of the tube to a lane.
local function apply_limits(name)
  Lanes.update(name)
end

-- Count a task in its lane: lanes got a capacity for the first time.
local function count_in_lane(id, value)
  call('HINCRBY', Call.keys.fill, Entry.read(id, value).lane or 'nil', 1)
end

-- Process a part of what was changed for all lanes or tasks. Return true if there is more to do.
function Timers.process_part()
  local K, plan = Call.keys, Call.plan
  return (Call.pacing and process_page('repace', K.lanes, plan.batch, apply_limits))
    or (plan.lane and process_page('recount', K.tasks, 500, count_in_lane))
end

-- The most cooldowns and blocks that one call ends: each takes a tenth of the time of a task.
local COOLDOWNS = 500

-- End cooldowns and blocks of lanes until a moment, at most `left`; return how many more this call may end.
local function end_cooldowns(present, until_then, left)
  local rests = Call.keys.rests
  while left > 0 do
    -- The end of a run may have begun a cooldown that is over, too.
    local name, cooldown = unpack(call('ZRANGEBYSCORE', rests, '-inf', present, 'WITHSCORES', 'LIMIT', 0, 1))
    if not name or cooldown + 0 > until_then then return left end
    left = left - 1
    Call.now = math.max(Call.now, cooldown)
    local rate = Lanes.read_limited(name)
    local before = rate.cooldown
    RateLimits.apply(rate, name)
    if rate.cooldown == before then
      -- An entry in ':rests' that differs from the lane's record would be found again and again.
      if before > 0 then call('ZADD', rests, before, name) else call('ZREM', rests, name) end
    end
    Lanes.store_limited()
  end
  return left
end

-- Return the soonest due event of the tube, and store it.
local function store_soonest()
  local K, now = Call.keys, Call.now
  -- Ignore kinds of due times that this tube does not process: they would be due for ever.
  local soonest = math.huge
  local function note(moment)
    soonest = math.min(soonest, tonumber(moment) or math.huge)
  end
  if Call.plan.timed then note(call('ZRANGE', K.due, 0, 0, 'WITHSCORES')[2]) end
  note(call('ZRANGE', K.leases, 0, 0, 'WITHSCORES')[2])
  local pause = tonumber(call('HGET', Call.key, 'paused') or nil)
  if pause and pause <= now then
    call('HDEL', Call.key, 'paused')
    Call.paused = false
  elseif pause and pause < 1e18 then
    note(pause)
  end
  call('HDEL', Call.key, 'soonest')
  if Call.pacing then note(call('ZRANGE', K.rests, 0, 0, 'WITHSCORES')[2]) end
  if Call.plan.token > 0 and Call.waiting then
    local token = Bucket.next_start()
    if token > now then note(token) end
  end
  if soonest < math.huge then call('HSET', Call.key, 'soonest', soonest) else soonest = false end
  Call.soonest, Call.values[3] = soonest, soonest
end

-- End the call before its method, after waking processes.
local function refuse(why)
  require('waiting').flush()
  return redis.error_reply(why)
end

-- Process due events. Return an error reply if the call must be repeated or has lost its session.
function Timers.process_due()
  local M, K, plan = Call.key, Call.keys, Call.plan
  local left, cooldowns, present = plan.batch, COOLDOWNS, Call.now
  if call('HGET', M, 'damaged') then return redis.error_reply('DAMAGED a script was refused halfway') end
  if Timers.process_part() then return refuse('AGAIN call again') end
  Call.now = 0
  local leases, ended = call('ZRANGEBYSCORE', K.leases, '-inf', present, 'WITHSCORES', 'LIMIT', 0, left), 0
  if plan.timed and not plan.ends_taken then
    -- A task whose ttl expired while it was taken is due only since its release.
    Call.now = math.min(tonumber(call('HGET', M, 'late') or 0), present)
  end
  while left > 0 do
    local first = plan.timed and call('ZRANGEBYSCORE', K.due, '-inf', present, 'WITHSCORES', 'LIMIT', 0, 1) or {}
    local token, lease = leases[2 * ended + 1], leases[2 * ended + 2]
    local ends_lease = token and (not first[1] or lease + 0 < first[2] + 0)
    local moment = ends_lease and lease + 0 or tonumber(first[2] or nil)
    if not moment then break end
    if Call.pacing then
      cooldowns = end_cooldowns(present, moment, cooldowns)
      if cooldowns <= 0 then break end
    end
    Call.now = math.max(Call.now, moment)
    if ends_lease then
      left = left - Sessions.release(token, left) - 1
      if left >= 0 then
        if Sessions.remove(token) then ended = ended + 1 else left = 0 end
      end
    else
      left = left - 1
      call('ZREM', K.due, first[1])
      Engine.time_out(unpack_struct('>I6', first[1]), tonumber(first[2]))
    end
  end
  if Call.pacing and left > 0 then cooldowns = end_cooldowns(present, present, cooldowns) end
  Call.now = present
  store_soonest()
  if left <= 0 or cooldowns <= 0 then return refuse('AGAIN call again') end
  if call('HEXISTS', M, Call.args[2]) == 0 then return refuse('SESSIONGONE its lease was over') end
end

-- Process due events and nothing else.
-- reply  the next due time (0: none)
function Timers.tick()
  return Call.soonest or 0
end

return Timers
