-- The tube itself: its options, pauses, lanes' limits, and its end.
local Call = require 'call'
local Lanes = require 'lanes'
local Lists = require 'lists'
local RateLimits = require 'rate_limits'
local Waiting = require 'waiting'

local call = redis.call
local format = string.format

local Tube = {}

-- Count the tasks of the lanes ('recount'), or apply changed limits to them ('reapply'): a part now, and the others in the
-- next calls (timers.lua).
local function start_parts(field)
  call('HSET', Call.key, field, 0)
  if require('timers').process_part(unpack(call('HMGET', Call.key, 'reapply', 'recount'))) then
    Call.set('soonest', 0)
  end
end

-- Count the tasks of lanes from now on.
function Tube.count_lanes()
  call('UNLINK', Call.keys.fill)
  start_parts('recount')
end

-- Change the options of the tube. Calls that were made for other options are refused from now on: the caller reads the
-- new options, and calls again.
-- ARGV  6 a new, unique name for these options, 7 the options, 8 the capacity, 9 the limits of its lanes ('': none),
--       10 '1': its lanes get a capacity for the first time, 11 microseconds by which takes may be ahead of
--       the rate: (burst - 1) times the time of a token, 12 by how many microseconds this is more than before
function Tube.alter(args)
  if call('HGET', Call.key, 'options') == args[7] then return nil, '' end
  local until_then = string.match(call('HGET', Call.key, 'listening') or '0', '^%S+')
  call('HSET', Call.key, 'listening', until_then .. ' ' .. args[6], 'options', args[7], 'capacity', args[8])
  if Call.plan.lane then
    if args[10] == '1' and not Call.counts_lanes() then Tube.count_lanes() end
    local limits = args[9] == '' and RateLimits.NONE or args[9]
    if limits ~= (Call.rate_limits or RateLimits.NONE) then
      call('HSET', Call.key, 'rate_limits', limits)
      Call.rate_limits = limits
      start_parts('reapply')
    end
  end
  -- The bucket keeps the time since it was empty. Callers may take sooner.
  local scheduled, starts = string.match(call('HGET', Call.key, 'bucket') or '', '^(%S+)(.*)$')
  if scheduled then
    call('HSET', Call.key, 'bucket', format('%.0f', math.min(scheduled + args[12], Call.now + args[11])) .. starts)
  end
  if Call.waiting then call('ZADD', Call.keys.marker, 0, 1) end
  if Call.filling and Call.filling + 0 > Call.now then Waiting.wake_all() end
  return nil, ''
end

-- Stop takes for a while; all other calls continue.
-- ARGV  6 microseconds ('': until `resume`), 7 '1': keep a pause that ends later
-- reply  the end of the pause
function Tube.pause(args)
  local moment = args[6] == '' and 1e18 or Call.now + args[6]
  if args[7] == '1' then moment = math.max(moment, tonumber(call('HGET', Call.key, 'paused') or 0)) end
  if moment < 1e18 then Call.note_due(moment) end
  call('HSET', Call.key, 'paused', moment)
  local result = format('%.0f', moment)
  return result, result
end

-- End a pause.
function Tube.resume()
  call('HDEL', Call.key, 'paused')
  return nil, ''
end

-- Block a lane, or give it limits of its own.
-- ARGV  6 the lane, 7 microseconds for which it is blocked ('': unchanged), 8 its interval in microseconds (-1: the
--       tube's, '': unchanged), 9 its max_in_flight (0: the tube's, '': unchanged),
--       10 its interval_from (0: take, 1: ack, -1: the tube's, '': unchanged),
--       11 '1': keep a block that ends later, 12 its capacity (-1: the tube's, '': unchanged), 13 the reason of the block
--       ('': none), 14 its burst (0: the tube's, '': unchanged), 15 its weight (0: the tube's, '': unchanged)
function Tube.limit_lane(args)
  local span, changes, limits = tonumber(args[7]), {}, RateLimits.new()
  for name, at in pairs({ interval = 8, most = 9, from = 10, capacity = 12, burst = 14, weight = 15 }) do
    changes[name] = tonumber(args[at] or '')
    limits[name] = changes[name] or limits[name]
  end
  local is_limited = (span or 0) > 0 or not RateLimits.is_default(limits)
  if limits.capacity >= 0 and not Call.counts_lanes() then
    Call.filled = '1'
    call('HSET', Call.key, 'filled', 1)
    Tube.count_lanes()
  end
  if not is_limited and not Call.rate_limits then return nil, '' end
  if not Call.rate_limits then
    Call.rate_limits = RateLimits.NONE
    call('HSET', Call.key, 'rate_limits', Call.rate_limits)
  end
  Lanes.update(args[6], function(rate)
    if is_limited then rate.noted = 1 end
    local ends = span and (span > 0 and Call.now + span or 0)
    if ends and (args[11] ~= '1' or ends >= rate.blocked) then rate.blocked, rate.reason = ends, args[13] or '' end
    for name, value in pairs(changes) do rate[name] = value end
    if changes.capacity and call('ZREM', Call.keys.crowded, args[6]) == 1 then Call.values.freed = true end
  end)
  return nil, ''
end

-- Restart the cooldown of lanes whose last start is in the future because the clock was set back: some per call.
-- ARGV  6 the cursor; 0: the beginning
-- reply  the next cursor; 0: the end
function Tube.restart_cooldowns(args)
  if not Call.rate_limits then return 0 end
  local page = call('HSCAN', Call.keys.lanes, args[6], 'COUNT', 50)
  for n = 1, #page[2], 2 do
    local rate = Lanes.read_limited(page[2][n])
    if rate.at > Call.now then
      RateLimits.apply(rate, page[2][n])
      Lanes.store_limited()
    end
  end
  return tonumber(page[1])
end

-- Remove all tasks at once. Counters and ids continue.
function Tube.truncate()
  local K = Call.keys
  call('UNLINK', K.tasks, K.ready, K.taken, K.due, K.buried, K.back, K.offers, K.behind, K.lanes, K.cooldowns, K.keys, K.known,
    K.fill, K.done, K.ended)
  if call('UNLINK', K.crowded) == 1 then Call.values.freed = true end
  call('HDEL', Call.key, 'delayed', 'strays')
  Call.strays = false
  call('HSET', Call.key, 'oldest', Call.next)
  if Call.listening then redis.pcall('PUBLISH', K.events, 'gone') end
  redis.pcall('PUBLISH', K.lost, '')
  return nil, ''
end

-- Remove the uploads and the records of all writes of a bulk writer.
local function remove_writes()
  local M, sealed = Call.key, Call.keys.sealed
  for _, name in ipairs(call('ZRANGE', sealed, 0, -1)) do
    local chunks = call('HGET', M .. ':written:' .. name, 'chunks')
    local keys = {}
    for chunk in string.gmatch(chunks or '', '(%S+) %S+ %S+ %S+ %S+ %S+') do keys[#keys + 1] = M .. ':staged:' .. chunk end
    keys[#keys + 1] = M .. ':written:' .. name
    Lists.run('UNLINK', sealed, keys)
  end
end

-- Remove the tube and all its tasks.
-- ARGV  6 '1': even if tasks are taken or callers wait, 7 the process, 8 how many of its callers wait
-- reply  nothing, or {the number of taken tasks, the number of waiting callers} if the tube is in use
function Tube.drop(args)
  local M, K = Call.key, Call.keys
  local forces, processes = args[6] ~= '', Waiting.list(K.waiting, 1000)
  local known = table.remove(processes)
  local others, waiting_there, expired = Waiting.count(processes, args[7])
  -- Estimate the total from a sample if there are many processes.
  if #processes > 0 then waiting_there = math.ceil(waiting_there * known * 2 / #processes) end
  local taken = call('ZCARD', K.taken)
  if not forces and (taken > 0 or waiting_there + args[8] > 0) then return { taken, waiting_there + args[8] } end
  -- No process of the sample still waits, but one of the others may.
  if not forces and known > #processes / 2 then
    Lists.run('HDEL', K.waiting, expired)
    return redis.error_reply('AGAIN call again')
  end
  remove_writes()
  local line = Call.is_partition() and call('ZRANGE', K.line, 0, 999) or {}
  for _, part in ipairs(Call.PARTS) do call('UNLINK', K[part]) end
  call('UNLINK', M)
  Call.values.gone = true
  if Call.listening then redis.pcall('PUBLISH', K.events, 'gone') end
  redis.pcall('PUBLISH', K.lost, '')
  -- Wake each other waiting process, at most a thousand of them, which then find that the tube is gone.
  for _, process in ipairs(line) do Waiting.notify(process) end
  local markers = {}
  for n = 1, others do markers[2 * n - 1], markers[2 * n] = 0, n end
  for _, key in ipairs({ K.marker, K.room }) do
    Lists.run('ZADD', key, markers)
    if others > 0 then call('PEXPIRE', key, 1000) end
  end
end

-- Functions without a session --------------------------------------------------------------------------------------------

-- Find out if the user may call functions and read the clock. It needs no key.
-- reply  'PONG'
function Tube.ping()
  local may = redis.acl_check_cmd
  if may and not may('TIME') then return redis.error_reply('NOPERM the user has no permission to run TIME') end
  return 'PONG'
end

-- Find out if a tube exists.
-- KEYS[1]  its meta hash
-- reply  its driver and its options; nil: it does not exist
function Tube.describe()
  return call('EXISTS', Call.key) == 1 and call('HMGET', Call.key, 'driver', 'options')
end

-- Mark the tube as damaged, because the server has refused a command in the middle of a call; or remove the mark.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 '1': mark it; '': it is repaired
function Tube.damage(args)
  if args[1] == '' then
    call('HDEL', Call.key, 'damaged')
  elseif call('HEXISTS', Call.key, 'born') == 1 then
    -- The next call processes due tasks, and finds the mark.
    call('HSET', Call.key, 'damaged', '1', 'soonest', 0)
  end
end

-- Find out which tubes exist.
-- KEYS[1]  the meta hash of the first tube
-- ARGV  the meta hashes of all tubes, a bounded number
-- reply  for each tube its driver; '': the key is not a tube; nil: the key does not exist
function Tube.tube_drivers(args)
  local there = {}
  for n = 1, #args do
    local kind = call('TYPE', args[n]).ok
    there[n] = kind ~= 'none' and (kind == 'hash' and call('HGET', args[n], 'driver') or '')
  end
  return there
end

-- Add, remove or list names of the tubes of a prefix.
-- KEYS[1]  the set of names
-- ARGV  1 'add' or 'remove', 2 a name; or 1 'some', 2 the cursor ('0': the beginning)
-- reply  of 'some' {the next cursor ('0': the end), names}: each tube that exists during the whole scan, some of them
--        twice
function Tube.tube_names(args)
  if args[1] == 'some' then return call('SSCAN', Call.key, args[2], 'COUNT', 1000) end
  call(args[1] == 'add' and 'SADD' or 'SREM', Call.key, args[2])
end

-- Count a call against a rate limit, with the generic cell rate algorithm (GCRA).
-- KEYS[1]  a hash whose field `filled` is the theoretical arrival time of the next call
-- ARGV  1 the emission interval in microseconds, 2 the tolerance for bursts in microseconds,
--       3 '1': count a call if it is allowed; '-1': give a counted call back
-- reply  microseconds until the call is allowed; 0: it was allowed and counted
function Tube.rate(args)
  local now = Call.time()
  local filled = math.max(tonumber(call('HGET', Call.key, 'filled')) or 0, now) + args[1] * args[3]
  local wait = args[3] == '1' and filled - args[2] - now or 0
  if wait > 0 then return math.ceil(wait) end
  call('HSET', Call.key, 'filled', format('%.0f', filled))
  call('PEXPIRE', Call.key, math.max(math.ceil((filled - now) / 1000), 1))
  return 0
end

-- Compile an expression `rank_lua`, and rank some task, to check that it runs.
-- ARGV  1 the expression
-- reply  the rank of the task; an error if the expression is not allowed or fails
function Tube.trial(args)
  local rank, why = require('plan').compile_rank(args[1])
  if not rank then return redis.error_reply('RANK ' .. why) end
  return tostring(rank(1, 1, 1))
end

return Tube
