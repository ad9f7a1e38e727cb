-- What there is at the end of a verb for those who wait.

-- Read only where it matters: most verbs need not know.
local function pauses()
  local ends = call('HGET', M, 'paused')
  return ends and ends + 0 > now
end

-- Whether somebody who waits for room has it now. A process says in a field of its own for how many tasks the first of
-- its callers needs it: '0 size until', as one of no callers.
local function has_room()
  local room = call('HGET', M, 'capacity') - call('HLEN', M .. ':tasks')
  local processes = call('HVALS', M .. ':waiting')
  for n = 1, #processes do
    local size, watched = string.match(processes[n], '^0 (%d+) (%d+)$')
    if size and tonumber(size) <= room and tonumber(watched) > now then return true end
  end
  return false
end

-- So many callers of a process wait for room, the first of them for so much.
local function wait_for_room(size, callers, process)
  local watched = string.format('%.0f', WATCHED)
  call('HDEL', M, 'filling')
  call('HSET', M, 'filling', watched)
  call('HSET', M .. ':waiting', process, callers .. ' ' .. watched, process .. ':room', '0 ' .. size .. ' ' .. watched)
end
