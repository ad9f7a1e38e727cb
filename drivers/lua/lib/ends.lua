-- How every verb ends.

--#if CAPACITY
local function has_room()
  local wanted = call('HMGET', M, 'filling', 'capacity')
  if not wanted[1] or tonumber(wanted[1]) <= now then return false end
  return call('HLEN', M .. ':tasks') < tonumber(wanted[2])
end
--#end

-- Write down what was noted. While somebody waits for what there is, leave one marker: whoever finds it takes, and the
-- next marker is left by that. Who finds it and nothing to take sleeps until the next moment at which something is due:
-- so one is left too when that comes sooner.
local function flush()
--#if LIST
  if loose >= 1000 then
--#slow
    tidy()
--#fast
  end
--#end
  if waiting then
--#slow
    if takeable() or (soonest and soonest < (tonumber(META.soonest) or math.huge)) then call('ZADD', M .. ':marker', 0, 1) end
--#fast
  end
--#if CAPACITY
  if has_room() then call('ZADD', M .. ':room', 0, 1) end
--#end
  if notes > 0 then call('HSET', M, unpack(noted, 1, notes)) end
end

-- Answer `reply`; a call that comes again with the same number gets `answer`, as `replayed`.
local function finish(reply, answer)
  note(ARGV[3], ARGV[4] .. ':' .. answer)
  flush()
  return reply
end
