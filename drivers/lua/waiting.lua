-- Waiting processes: how they are woken, and what is known of them.
--
-- A waiting process blocks on the sorted set ':marker' with BZPOPMIN. If there is a task to take, a call leaves one
-- marker. The process that pops it sends a take, and that call leaves the next marker. A process that pops a marker but
-- gets no task sleeps until the next due time, so a call leaves a marker also if that time has become earlier. Processes
-- that wait for room block on ':room' in the same way.
--
-- A field PROCESS of ':waiting' is 'CALLERS UNTIL': how many callers wait there, and until when that is valid. ':wanting'
-- sorts processes that wait for room by the number of tasks that their first caller wants to put; a field PROCESS:room
-- of ':waiting' says until when this is valid: '0 SIZE UNTIL' (0, so that it does not count as a caller).
--
-- A process cannot block on many partitions of a tube at once. So it stands in the sorted set ':line' of each, since the
-- time of its last take there, and subscribes to a channel of each. If there is a task to take, a call removes the process
-- that has stood for longest from the line, and wakes it by a message on its channel. The marker says that a process was
-- woken; until that process takes, no call wakes another one. It expires, since a process may have stopped.
local Call = require 'call'
local Bucket = require 'bucket'
local Lists = require 'lists'

local call = redis.call
local match = string.match

local Waiting = {}

-- Microseconds for which the calls on a partition remember that processes stand in its line. They stand again before.
local STANDING = 40000000
-- Milliseconds for which a process that was woken may be on its way.
local WAKING = 50

-- Return the moment until which a process stays registered. A later time than this was written before the clock was set
-- back. A test that sets the time has no limit.
local function watched()
  return Call.args[5] == '' and Call.now + Call.WATCHED or 1e18
end

local function watched_text()
  return string.format('%.0f', watched())
end

-- True if no task may be taken now.
local function is_held_back()
  if Bucket.tokens() == 0 then return true end
  local ends = call('HGET', Call.key, 'paused')
  return ends and ends + 0 > Call.now
end

-- True if a process waits for room and there is enough. Processes that stopped waiting are removed once they are first.
local function has_room()
  local K = Call.keys
  local room = call('HGET', Call.key, 'capacity') - call('HLEN', K.tasks)
  for _ = 1, 100 do
    local process, size = unpack(call('ZRANGE', K.wanting, 0, 0, 'WITHSCORES'))
    if not process or size + 0 > room then return false end
    local ends = tonumber(match(call('HGET', K.waiting, process .. ':room') or '', ' (%d+)$'))
    if ends and ends > Call.now and ends <= watched() then return true end
    call('ZREM', K.wanting, process)
  end
  -- The process that gets this marker makes a call that checks the next processes.
  return true
end

-- Let each process that waits for room check again, at most a thousand.
function Waiting.wake_all()
  local markers = {}
  for n = 1, math.min(call('HLEN', Call.keys.waiting), 1000) do markers[2 * n - 1], markers[2 * n] = 0, n end
  Lists.run('ZADD', Call.keys.room, markers)
end

-- True if a task may be taken now.
local function has_ready()
  local values = Call.values
  if values.ready == nil then values.ready = Call.plan.index.has_ready() and not is_held_back() end
  return values.ready
end

-- True if processes wait in the line of a partition. With a test's clock they wait for markers there, too.
local function has_line()
  return Call.is_partition() and Call.args[5] == ''
end

-- Let a process stand in the line of a partition.
local function stand(process)
  call('ZADD', Call.keys.line, 'NX', string.format('%.0f', Call.now), process)
  Call.set('waiting', string.format('%.0f', watched() + STANDING))
end

-- Send a message to a process in line; return the number of its receivers.
function Waiting.notify(process)
  return redis.pcall('SPUBLISH', Call.key .. ':wake:' .. process, '')
end

-- Wake the process that has stood in line for longest. Return false if nobody stands there.
local function wake_next()
  local K = Call.keys
  if call('ZADD', K.marker, 'NX', 0, 1) == 0 then return true end
  call('PEXPIRE', K.marker, WAKING)
  while true do
    local process = call('ZRANGE', K.line, 0, 0)[1]
    if not process then
      call('UNLINK', K.marker)
      return false
    end
    call('ZREM', K.line, process)
    -- It is an error if this user may not publish. Then the process takes at its next rare look.
    if Waiting.notify(process) ~= 0 then return true end
  end
end

-- Return when the next task can be taken, for a process that has just taken one: 1 if now, 0 if nothing is due. If none
-- can be taken from a partition now, the process stands in its line.
function Waiting.outlook(process)
  local ready = has_ready()
  if not ready and has_line() then stand(process) end
  return struct.pack('>I8', ready and 1 or Call.soonest or 0)
end

-- The process that was woken is here.
function Waiting.answer()
  call('UNLINK', Call.keys.marker)
end

-- Wake processes at the end of a call, and renew the expiry of a tube with the option `idle`.
function Waiting.flush()
  local plan, K = Call.plan, Call.keys
  local strays = Call.values.strays or 0
  if Call.strays and Call.strays - strays >= 1000 then plan.index.remove_stale(strays) end
  if Call.waiting then
    local soonest = Call.soonest
    if has_ready() or (soonest and soonest < (tonumber(Call.values[3]) or math.huge)) then
      if not has_line() then
        call('ZADD', K.marker, 0, 1)
      elseif not wake_next() then
        Call.set('waiting', 0)
      end
    end
  end
  if Call.filling and Call.filling + 0 > Call.now then
    if has_room() then call('ZADD', K.room, 0, 1) end
    if Call.values.freed then Waiting.wake_all() end
  end
  if plan.idle then
    call('PEXPIRE', Call.key, plan.idle)
    for _, part in ipairs(Call.PARTS) do call('PEXPIRE', K[part], plan.idle) end
  end
end

-- Register `callers` of a process as waiting for a task; '0': it is registered in another partition.
function Waiting.wait_for_task(callers, process)
  local ends = watched()
  if not Call.values[2] then require('sessions').store_slot() end
  if has_line() then stand(process) end
  call('HSET', Call.key, Call.args[3], Call.args[4] .. ':', 'waiting', has_line() and Call.waiting or ends)
  if callers ~= '0' then call('HSET', Call.keys.waiting, process, string.format('%s %.0f', callers, ends)) end
end

-- Register `callers` of a process as waiting for room; the first of them puts `size` tasks. `lane`: the lane, if the
-- lane is full rather than the tube.
function Waiting.wait_for_room(size, callers, process, lane)
  local K, ends = Call.keys, watched_text()
  call('HSET', Call.key, 'filling', ends)
  if lane then
    call('HSET', K.waiting, process, callers .. ' ' .. ends)
    call('ZADD', K.crowded, 0, lane)
    return
  end
  call('HSET', K.waiting, process, callers .. ' ' .. ends, process .. ':room', '0 ' .. size .. ' ' .. ends)
  call('ZADD', K.wanting, size, process)
end

-- A caller of the process has got its room.
function Waiting.stop_waiting_for_room(process)
  call('HDEL', Call.keys.waiting, process .. ':room')
end

-- List processes that wait, each with the number of its callers and until when that is valid: at most `most`, chosen at
-- random if there are more. The last entry is the number of all.
function Waiting.list(waiting, most)
  local processes = call('HRANDFIELD', waiting, most, 'WITHVALUES')
  processes[#processes + 1] = call('HLEN', waiting)
  return processes
end

-- Return how many other processes of a list have callers, how many callers these are, and the processes whose entry has
-- expired.
function Waiting.count(processes, own)
  local others, callers_there, expired, last = 0, 0, {}, watched()
  for n = 1, #processes, 2 do
    local callers, ends = match(processes[n + 1], '^(%d+) .-(%d+)$')
    if tonumber(ends) <= Call.now or tonumber(ends) > last then
      expired[#expired + 1] = processes[n]
    elseif processes[n] ~= own and callers ~= '0' then
      others, callers_there = others + 1, callers_there + callers
    end
  end
  return others, callers_there, expired
end

-- Push a marker, which wakes one waiting process; or the next process if a partition has woken the caller in vain.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'marker' or 'room'
function Waiting.wake(args)
  if call('EXISTS', Call.key) == 0 then return end
  if Call.is_partition() and args[1] == 'marker' then
    Waiting.answer()
    wake_next()
    return
  end
  local key = Call.keys[args[1]]
  call('ZADD', key, 0, 1)
  -- The marker expires with the tube.
  local left = call('PTTL', Call.key)
  if left > 0 then call('PEXPIRE', key, left) end
end

-- Wake a waiting process because a due time has come, unless another call has processed it already.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'marker' or 'room', 2 the due time
-- reply  microseconds until the due time by the server's clock; 0 if it has passed
function Waiting.wake_at_due(args)
  local soonest = tonumber(call('HGET', Call.key, 'soonest') or nil)
  if not soonest or soonest > tonumber(args[2]) then return 0 end
  local now = Call.time()
  if soonest > now then return soonest - now end
  if Call.is_partition() and args[1] == 'marker' then
    wake_next()
  else
    call('ZADD', Call.keys[args[1]], 0, 1)
  end
  return 0
end

return Waiting
