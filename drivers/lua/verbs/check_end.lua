-- Check the counters of a tube, after all other checks.
-- ARGV  3 the number of delayed tasks ('': unknown), 4 the stamp that this script returned before they were counted
--       ('': none)
-- reply  {a stamp, which changes with each call that moves tasks; the problems}
local tasks, taken, buried = call('HLEN', M .. ':tasks'), call('ZCARD', M .. ':taken'), call('ZCARD', M .. ':buried')
local counted = call('HMGET', M, 'next', 'takes', 'acks', 'calls:release', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put', 'delayed', 'loose')
for n = 1, #counted do counted[n] = counted[n] or '' end
local delayed = tonumber(META.delayed or 0)
--#if LIST
local length, back = call('LLEN', M .. ':ready'), call('ZCARD', M .. ':back')
local stamp = table.concat(counted, ' ') .. ' ' .. table.concat({ tasks, taken, buried, length, back }, ' ')
local right = 0
right = ARGV[3] ~= '' and ARGV[4] == stamp and tonumber(ARGV[3]) or nil  --#if TIMED
if right and delayed ~= right and note('counter', 'delayed') then call('HSET', M, 'delayed', right) end
local loose = tonumber(META.loose or 0)
if right then
  -- Entries of the list that are not ready tasks, and ready tasks that are not in the list.
  local stale = length - (tasks - taken - buried - right - back)
  if loose ~= stale + back and note('counter', 'loose') then call('HSET', M, 'loose', stale + back) end
elseif (loose < back or loose > length + back) and note('counter', 'loose') then
  call('HSET', M, 'loose', length + back)
end
--#else
local stamp = table.concat(counted, ' ')
--#if LANE
local ready = call('ZCARD', M .. ':offers') + call('ZCARD', M .. ':behind')
--#else
local ready = call('ZCARD', M .. ':ready')
--#end
local right = tasks - taken - buried - ready
if delayed ~= right and note('counter', 'delayed') then call('HSET', M, 'delayed', right) end
--#end
-- `soonest` must not be later than the first due time.
local soonest = tonumber(call('ZRANGE', M .. ':leases', 0, 0, 'WITHSCORES')[2] or nil) or math.huge
--#if TIMED
soonest = math.min(soonest, tonumber(call('ZRANGE', M .. ':due', 0, 0, 'WITHSCORES')[2] or nil) or math.huge)
--#end
--#if LANE
if META.pacing then
  soonest = math.min(soonest, tonumber(call('ZRANGE', M .. ':rests', 0, 0, 'WITHSCORES')[2] or nil) or math.huge)
end
--#end
local paused = tonumber(META.paused or nil)
if paused and paused < 1e18 then soonest = math.min(soonest, paused) end
if soonest < (tonumber(META.soonest or nil) or math.huge) and note('counter', 'soonest') then call('HSET', M, 'soonest', soonest) end
--#if LANE_ROOM
if repairs then
  -- The next calls count the tasks of the lanes again.
  call('UNLINK', M .. ':fill')
  call('HSET', M, 'recount', 0, 'soonest', 0)
end
--#end
return { stamp, found }
