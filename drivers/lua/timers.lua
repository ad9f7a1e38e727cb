-- Due events, as in timers.py and `Engine.expire`: the ends of delays, ttr and ttl (':due'), of cooldowns and blocks of
-- lanes (':cooldowns'), of the leases of sessions (':leases'), and of a pause.
--
-- They happen in the order of their moments, at most `plan.batch` per call, and until it is spent. Meanwhile `Call.now`
-- is the moment of the current one. The field `soonest` of the meta hash is the first of all, so a call looks for due
-- events only if it has passed.
local Call = require 'call'
local Bucket = require 'bucket'
local Entry = require 'entry'
local Engine = require 'engine'
local Lanes = require 'lanes'
local Pending = require 'pending'
local RateLimits = require 'rate_limits'
local Sessions = require 'sessions'

local call = redis.call
local unpack_struct = struct.unpack

local Timers = {}

-- Process a page of the lanes or tasks, from a cursor on that is in a field of the meta hash. Return true if there are
-- more.
local function process_page(field, cursor, key, count, act)
  cursor = Call.scan('HSCAN', key, cursor, count, act)
  if cursor == '0' then call('HDEL', Call.key, field) else call('HSET', Call.key, field, cursor) end
  return cursor ~= '0'
end

-- Apply changed limits of the tube to a lane.
local function apply_limits(name)
  Lanes.update(name)
end

-- Count a task in its lane: lanes got a capacity for the first time.
local function count_in_lane(id, value)
  call('HINCRBY', Call.keys.fill, Entry.read(id, value).lane or 'nil', 1)
end

-- Process a part of what was changed for all lanes or tasks. Return true if there is more to do. The arguments are the
-- fields of the meta hash of these names, or false.
function Timers.process_part(reapply, recount)
  local K, plan = Call.keys, Call.plan
  return (Call.rate_limits and reapply and process_page('reapply', reapply, K.lanes, plan.batch, apply_limits))
    or (plan.lane and recount and process_page('recount', recount, K.tasks, 500, count_in_lane))
end

-- The most cooldowns and blocks that one call ends: each takes a tenth of the time of a task.
local COOLDOWNS = 500

-- End cooldowns and blocks of these lanes; `found`: the name and the moment of each, in order. Return true if a lane has
-- another cooldown or block that ends until `until_then`.
local function end_each(found, until_then)
  local cooldowns, names, again = Call.keys.cooldowns, {}, false
  for n = 1, #found, 2 do names[#names + 1] = found[n] end
  Pending.load_fields(Call.keys.lanes, names)
  for n = 1, #names do
    Call.now = math.max(Call.now, found[2 * n])
    local rate = Lanes.read_limited(names[n])
    local before = rate.cooldown
    RateLimits.apply(rate, names[n])
    if rate.cooldown == before then
      -- An entry in ':cooldowns' that differs from the lane's record would be found again and again.
      if before > 0 then Pending.add(cooldowns, before, names[n]) else Pending.remove(cooldowns, names[n]) end
    end
    again = again or (rate.cooldown > 0 and rate.cooldown <= until_then)
    Lanes.store_limited()
  end
  return again
end

-- End cooldowns and blocks of lanes until a moment, at most `left`; return how many more this call may end.
local function end_cooldowns(present, until_then, left)
  while left > 0 do
    local found = call('ZRANGEBYSCORE', Call.keys.cooldowns, '-inf', math.min(present, until_then), 'WITHSCORES', 'LIMIT', 0, left)
    if #found == 0 then return left end
    left = left - #found / 2
    if not Pending.run(end_each, found, until_then) then return left end
  end
  return left
end

-- Return the first member of a sorted set of moments and its moment; false and huge: the set is empty.
local function first_of(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[1] or false, tonumber(first[2] or math.huge)
end

-- Set the soonest due event of the tube: `soonest`, or the end of `pause` (nil: none), of a cooldown or of a token's
-- interval.
local function set_soonest(soonest, pause)
  local now = Call.now
  if pause and pause <= now then
    call('HDEL', Call.key, 'paused')
    Call.paused = false
  elseif pause and pause < 1e18 then
    soonest = math.min(soonest, pause)
  end
  if Call.rate_limits then
    local _, cooldown = first_of(Call.keys.cooldowns)
    soonest = math.min(soonest, cooldown)
  end
  if Call.plan.token > 0 and Call.waiting then
    local token = Bucket.next_start()
    if token > now then soonest = math.min(soonest, token) end
  end
  if soonest < math.huge then
    Call.set('soonest', soonest)
  else
    call('HDEL', Call.key, 'soonest')
    Call.soonest = false
  end
  Call.values[3] = Call.soonest
end

-- End the call before its method, after waking processes.
local function refuse(why)
  require('waiting').flush()
  Call.write_changed()
  return redis.error_reply(why)
end

-- Process due events. Return an error reply if the call must be repeated or has lost its session.
function Timers.process_due()
  local M, K, plan = Call.key, Call.keys, Call.plan
  local left, cooldowns, present = plan.batch, COOLDOWNS, Call.now
  local damaged, reapply, recount, late, paused = unpack(call('HMGET', M, 'damaged', 'reapply', 'recount', 'late', 'paused'))
  if damaged then return redis.error_reply('DAMAGED a script was refused halfway') end
  if Timers.process_part(reapply, recount) then return refuse('AGAIN call again') end
  Call.now = 0
  -- A tube without times does not process ':due': entries there would be due for ever.
  local ended, member, due = 0, false, math.huge
  local token, lease = first_of(K.leases)
  if plan.timed and not plan.ends_taken then
    -- A task whose ttl expired while it was taken is due only since its release.
    Call.now = math.min(tonumber(late or 0), present)
  end
  while left > 0 and not Call.is_spent() do
    if plan.timed then member, due = first_of(K.due) end
    local moment = math.min(due, lease)
    if moment > present then break end
    if Call.rate_limits then
      cooldowns = end_cooldowns(present, moment, cooldowns)
      if cooldowns <= 0 then break end
    end
    Call.now = math.max(Call.now, moment)
    if lease < due then
      left = left - Sessions.release(token, left) - 1
      if left >= 0 then
        if Sessions.remove(token) then ended = ended + 1 else left = 0 end
        token, lease = first_of(K.leases)
      end
    else
      left = left - 1
      call('ZREM', K.due, member)
      Engine.time_out(unpack_struct('>I6', member), due)
    end
  end
  if Call.rate_limits and left > 0 then cooldowns = end_cooldowns(present, present, cooldowns) end
  Call.now = present
  set_soonest(math.min(due, lease), tonumber(paused or nil))
  if left <= 0 or cooldowns <= 0 or Call.is_spent() then return refuse('AGAIN call again') end
  if ended > 0 and call('HEXISTS', M, Call.args[2]) == 0 then return refuse(Call.SESSION_GONE) end
end

-- Process due events and nothing else.
-- reply  the next due time (0: none)
function Timers.tick()
  return Call.soonest or 0
end

return Timers
