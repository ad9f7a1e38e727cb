-- Functions for the end of a script, which wakes waiting processes.

-- True if no task may be taken now. The field is read here because most methods do not need it.
local function paused()
  if tokens() == 0 then return true end  --#if RATED
  local ends = call('HGET', M, 'paused')
  return ends and ends + 0 > now
end

-- True if a process waits for room and there is enough. ':wanting' sorts processes by the number of tasks that their
-- first caller wants to put. A field PROCESS:room in ':waiting' says until when this is valid: '0 SIZE UNTIL' (0, so
-- that it does not count as a caller). Processes that stopped waiting are removed once they are first.
local function has_room()
  local room = call('HGET', M, 'capacity') - call('HLEN', M .. ':tasks')
  for _ = 1, 100 do
    local process, size = unpack(call('ZRANGE', M .. ':wanting', 0, 0, 'WITHSCORES'))
    if not process or size + 0 > room then return false end
    local watched = string.match(call('HGET', M .. ':waiting', process .. ':room') or '', ' (%d+)$')
    -- A later time than WATCHED was written before the clock was set back.
    if watched and tonumber(watched) > now and tonumber(watched) <= WATCHED then return true end
    call('ZREM', M .. ':wanting', process)
  end
  -- The process that gets this marker runs a script that checks the next processes.
  return true
end

-- Let each process that waits for room check again, at most a thousand.
local function wake_all()
  local markers = {}
  for n = 1, math.min(call('HLEN', M .. ':waiting'), 1000) do markers[2 * n - 1], markers[2 * n] = 0, n end
  many('ZADD', M .. ':room', markers)
end

-- Register `callers` of a process as waiting for room; the first of them puts `size` tasks. `crowded`: the lane, if
-- the lane is full rather than the tube.
local function wait_for_room(size, callers, process, crowded)
  local watched = string.format('%.0f', WATCHED)
  call('HDEL', M, 'filling')
  call('HSET', M, 'filling', watched)
--#if LANE_ROOM
  if crowded then
    call('HSET', M .. ':waiting', process, callers .. ' ' .. watched)
    call('ZADD', M .. ':crowded', 0, crowded)
    return
  end
--#end
  call('HSET', M .. ':waiting', process, callers .. ' ' .. watched, process .. ':room', '0 ' .. size .. ' ' .. watched)
  call('ZADD', M .. ':wanting', size, process)
end
