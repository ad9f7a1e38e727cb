-- What there is at the end of a verb for those who wait.

-- Read only where it matters: most verbs need not know.
local function pauses()
  local ends = call('HGET', M, 'paused')
  return ends and ends + 0 > now
end

-- Whether somebody who waits for room has it now. ':wanting' has processes by how many tasks the first of their callers
-- needs it for; until when that counts each says in a field of its own: '0 size until', as one of no callers. Those that
-- do not wait any more leave it when they come first.
local function has_room()
  local room = call('HGET', M, 'capacity') - call('HLEN', M .. ':tasks')
  for _ = 1, 100 do
    local process, size = unpack(call('ZRANGE', M .. ':wanting', 0, 0, 'WITHSCORES'))
    if not process or size + 0 > room then return false end
    local watched = string.match(call('HGET', M .. ':waiting', process .. ':room') or '', ' (%d+)$')
    -- What lies further ahead than anybody says is from before the clock was set back.
    if watched and tonumber(watched) > now and tonumber(watched) <= WATCHED then return true end
    call('ZREM', M .. ':wanting', process)
  end
  -- Whoever gets the marker has the next ones looked at.
  return true
end

-- Each process that waits for room looks whether it has some now, a thousand at most.
local function wake_all()
  local markers = {}
  for n = 1, math.min(call('HLEN', M .. ':waiting'), 1000) do markers[2 * n - 1], markers[2 * n] = 0, n end
  many('ZADD', M .. ':room', markers)
end

-- So many callers of a process wait for room, the first of them for so much; `crowded`: the lane in which that is.
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
