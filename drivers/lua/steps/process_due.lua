-- Process due tasks: end delays, ttr, ttl and the leases of sessions. They end in the order of their due times, at
-- most SOME per call, which takes about 10 ms. Meanwhile `now` is the due time of the current one, and `present` the
-- time of the call.
-- in: nothing
local left, present = SOME, now
if call('HGET', M, 'damaged') then return redis.error_reply('DAMAGED a script was refused halfway') end
--#if PACED
-- The options for lanes were changed: update all lanes first.
local cursor = call('HGET', M, 'repace')
if cursor then
  local page = call('HSCAN', M .. ':lanes', cursor, 'COUNT', SOME)
  for n = 1, #page[2], 2 do
    lane = page[2][n]
    read_pace(0)
    update_cooldown()
    write_pace()
  end
  if page[1] == '0' then
    call('HDEL', M, 'repace')
  else
    call('HSET', M, 'repace', page[1])
--#include flush
    return redis.error_reply('AGAIN call again')
  end
end
--#end
--#if LANE_ROOM
-- Lanes got a capacity for the first time: count their tasks before anything else happens.
local counted = call('HGET', M, 'recount')
if counted then
  local page = call('HSCAN', M .. ':tasks', counted, 'COUNT', 500)
  call('HDEL', M, '')
  for n = 1, #page[2], 2 do call('HINCRBY', M .. ':fill', read(page[2][n], page[2][n + 1]).lane or 'nil', 1) end
  if page[1] == '0' then
    call('HDEL', M, 'recount')
  else
    call('HSET', M, 'recount', page[1])
--#include flush
    return redis.error_reply('AGAIN call again')
  end
end
--#end
now = 0
--#if PACED
-- The lane whose cooldown ends first, and when.
local next_lane, cooldown
local function read_first_cooldown()
  next_lane, cooldown = unpack(call('ZRANGEBYSCORE', M .. ':rests', '-inf', present, 'WITHSCORES', 'LIMIT', 0, 1))
end
local function end_cooldowns(until_then)
  -- The end of a run may have begun a cooldown that is over, too.
  read_first_cooldown()
  while next_lane and left > 0 and cooldown + 0 <= until_then do
    left = left - 1
    now = math.max(now, cooldown)
    lane = next_lane
    read_pace(0)
    update_cooldown()
    -- Use the moment in the lane's record: an entry in ':rests' that differs from it would be found again and again.
    if pace.cooldown > 0 then call('ZADD', M .. ':rests', pace.cooldown, lane) else call('ZREM', M .. ':rests', lane) end
    write_pace()
    read_first_cooldown()
  end
end
--#end
local leases, ended = call('ZRANGEBYSCORE', M .. ':leases', '-inf', present, 'WITHSCORES', 'LIMIT', 0, left), 0
--#if TIMED
-- A task whose ttl expired while it was taken is due only since its release.
now = math.min(tonumber(call('HGET', M, 'late') or 0), present)  --#unless ENDS_TAKEN
--#end
while left > 0 do
--#if TIMED
  local first = call('ZRANGEBYSCORE', M .. ':due', '-inf', present, 'WITHSCORES', 'LIMIT', 0, 1)
--#else
  local first = {}
--#end
  local token, lease = leases[2 * ended + 1], leases[2 * ended + 2]
  local ends = token and (not first[1] or lease + 0 < first[2] + 0)
  local moment = ends and lease + 0 or tonumber(first[2] or nil)
  if not moment then break end
--#if PACED
  end_cooldowns(moment)
  if left <= 0 then break end
--#end
  now = math.max(now, moment)
  if ends then
    left = left - release_session(token, left) - 1
    if left >= 0 then
      if remove_session(token) then ended = ended + 1 else left = 0 end
    end
--#if TIMED
  else
    left = left - 1
    call('ZREM', M .. ':due', first[1])
    local task = find(unpack_struct('>I6', first[1]))
    local due
    if task and task.state == '~' then
--#move delay
    elseif task and task.state == 't' then
      local dead = ttl_end(task)
      count_event(task, 4)
      if not ENDED_BY_TTL and is_last(task) then
        task.reason = '00max_attempts: ttr'
--#move ttr_last t
--#if BACKOFF
      elseif not ENDED_BY_TTL then
        local span = backoff_delay(task)
        extend_ttl(task, span)
        due = now + span
--#move ttr_delayed t
--#end
      else
--#move ttr
      end
    elseif task then
--#move ttl
    end
--#end
  end
end
end_cooldowns(present)  --#if PACED
now = present
-- Ignore kinds of due times that this script does not process: they would be due forever.
local task
task = call('ZRANGE', M .. ':due', 0, 0, 'WITHSCORES')[2]  --#if TIMED
local lease = call('ZRANGE', M .. ':leases', 0, 0, 'WITHSCORES')[2]
local pause = tonumber(call('HGET', M, 'paused') or nil)
if pause and pause <= now then call('HDEL', M, 'paused') end
if not pause or pause <= now or pause == 1e18 then pause = math.huge end
call('HDEL', M, 'soonest')
soonest = math.min(tonumber(task) or math.huge, tonumber(lease) or math.huge, pause)
soonest = math.min(soonest, tonumber(call('ZRANGE', M .. ':rests', 0, 0, 'WITHSCORES')[2]) or math.huge)  --#if PACED
--#if RATED
if waiting then
  local token = next_token()
  if token > now then soonest = math.min(soonest, token) end
end
--#end
if soonest < math.huge then call('HSET', M, 'soonest', soonest) else soonest = nil end
META.soonest = soonest or false
-- The caller repeats a put: the server does not check its memory in a script that has already written.
if left <= 0 or PUTS then
--#include flush
  return redis.error_reply('AGAIN call again')
end
if call('HEXISTS', M, ARGV[2]) == 0 then
--#include flush
  return redis.error_reply('SESSIONGONE its lease was over')
end
