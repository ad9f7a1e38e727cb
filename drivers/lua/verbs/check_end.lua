-- Check what a tube counts, after all else.
-- ARGV  3 how many tasks are delayed ('': nobody knows), 4 what this has answered before these were counted ('': nothing)
-- answers  {what says whether anything has happened meanwhile, what is wrong}
local tasks, taken, buried = call('HLEN', M .. ':tasks'), call('ZCARD', M .. ':taken'), call('ZCARD', M .. ':buried')
local counted = call('HMGET', M, 'next', 'takes', 'acks', 'calls:release', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put', 'delayed', 'loose')
for n = 1, #counted do counted[n] = counted[n] or '' end
local delayed = tonumber(META.delayed or 0)
--#if LIST
local length, back = call('LLEN', M .. ':ready'), call('ZCARD', M .. ':back')
local stamp = table.concat(counted, ' ') .. ' ' .. table.concat({ tasks, taken, buried, length, back }, ' ')
local right = 0
--#if TIMED
right = ARGV[3] ~= '' and ARGV[4] == stamp and tonumber(ARGV[3]) or nil
--#end
if right and delayed ~= right and note('counter', 'delayed') then call('HSET', M, 'delayed', right) end
local loose = tonumber(META.loose or 0)
if right then
  -- Those in the list that are not ready there, and those that are not in it.
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
-- Nothing is due before it is looked for.
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
if mends then
  -- What lanes have is counted again by the next calls.
  call('UNLINK', M .. ':fill')
  call('HSET', M, 'recount', 0, 'soonest', 0)
end
--#end
return { stamp, found }
