-- What is due happens: delays, times to run, times to live and leases of sessions end, so many per call.
local left = 1000
--#if LANE
-- The lane whose rest is over first.
local rested, over
local function look_at_rests()
  rested, over = unpack(call('ZRANGEBYSCORE', M .. ':rests', '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1))
end
local function end_rests(until_then)
  while META.pacing and rested and left > 0 and over + 0 <= until_then do
    left = left - 1
    lane = rested
    enter_pace(0)
    rest_anew()
    leave_pace()
    look_at_rests()
  end
end
if META.pacing then look_at_rests() end
--#end
--#if TIMED
while left > 0 do
  local first = call('ZRANGEBYSCORE', M .. ':due', '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then break end
--#if LANE
  end_rests(first[2] + 0)
  if left <= 0 then break end
--#end
  left = left - 1
  call('ZREM', M .. ':due', first[1])
  local task, due = find(unpack_struct('>I6', first[1]))
  if task.state == '~' then
--#move delay
  elseif task.state == 't' then
    local dead = dead_of(task)
    if not ENDED_BY_TTL and is_last(task) then
      task.reason = 'max_attempts: ttr'
--#move ttr_last t
--#if BACKOFF
    elseif not ENDED_BY_TTL then
      local span = rest_of(task)
      prolong(task, span)
      due = now + span
--#move ttr_delayed t
--#end
    else
--#move ttr
    end
  else
--#move ttl
  end
end
--#end
--#if LANE
end_rests(now)
--#end
local over = left > 0 and call('ZRANGEBYSCORE', M .. ':leases', '-inf', now, 'LIMIT', 0, left) or {}
local ended = {}
for _, token in ipairs(over) do
  if left <= 0 then break end
  left = left - release_of(tonumber(string.match(token, '%d+')), left) - 1
  if left >= 0 then ended[#ended + 1] = token end
end
if #ended > 0 then forget(ended) end
local task = call('ZRANGE', M .. ':due', 0, 0, 'WITHSCORES')[2]
local lease = call('ZRANGE', M .. ':leases', 0, 0, 'WITHSCORES')[2]
local pause = tonumber(call('HGET', M, 'paused') or nil)
if pause and pause <= now then call('HDEL', M, 'paused') end
if not pause or pause <= now or pause == 1e18 then pause = math.huge end
call('HDEL', M, 'soonest')
soonest = math.min(tonumber(task) or math.huge, tonumber(lease) or math.huge, pause)
--#if LANE
soonest = math.min(soonest, tonumber(call('ZRANGE', M .. ':rests', 0, 0, 'WITHSCORES')[2]) or math.huge)
--#end
if soonest < math.huge then call('HSET', M, 'soonest', soonest) else soonest = nil end
META.soonest = soonest or false
-- A put begins anew: in a script that has written something the server does not ask whether it has memory left.
if left <= 0 or PUTS then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
if call('HEXISTS', M, ARGV[2]) == 0 then
--#include flush
  return redis.error_reply('SESSIONGONE its lease was over')
end
