-- Check that each task is in the right indexes, and in no other of the lanes, keys and due times.
-- ARGV  3 '1': the list of ready tasks is out of order, 4… ids, in descending order, a bounded number
-- reply  {the number of ids that were checked, the problems}
--#if LIST
-- The part of the list between the first and the last of these ids, unless it is much longer than they are.
local listed
if ARGV[3] == '' then
  local first, last = index_of(ARGV[#ARGV] + 0), index_of(ARGV[4] + 1)
  if last - first <= 5000 then
    listed = {}
    for _, id in ipairs(last > first and call('LRANGE', M .. ':ready', first, last - 1) or {}) do listed[id] = true end
  end
end
--#end
local function check_key(task)
  local named = call('HGET', M .. ':keys', task.key)
  if named == task.id or not note('key', task.key) then return end
  local other = named and id_of(named) and task_of(named)
  if other and other.key == task.key then
    -- Two tasks have the key: this one loses it.
    task.key, task.key_ttl, task.state = false, false, task.state == 't' and 'r' or task.state
    write(task)
  else
    call('HSET', M .. ':keys', task.key, task.id)
  end
end
--#if TIMED
local function check_due(task)
  local member, dead = pack('>I6', task.id), ttl_end(task)
  local due = tonumber(call('ZSCORE', M .. ':due', member) or nil)
  local right = dead or nil
  if task.state == '~' then
    right = due or now
  elseif task.state == 't' then
    right = due
--#if ENDS_TAKEN
    if not task.ttr then right = dead or nil end
    if due and dead then right = math.min(due, dead) end
    -- Tasks of a stream have no ttr: the lease of its session replaces it.
    if not due and dead then right = dead end
--#else
    if not task.ttr then right = nil end
--#end
  end
  if due == right or not note('due', task.id) then return end
  if right then
    call('ZADD', M .. ':due', string.format('%.0f', right), member)
    if right < (tonumber(call('HGET', M, 'soonest') or nil) or math.huge) then call('HSET', M, 'soonest', right) end
  else
    call('ZREM', M .. ':due', member)
  end
end
--#end
local oldest, next_id = tonumber(call('HGET', M, 'oldest') or 0), META.next + 0
local function check_task(id, value)
  if id + 0 >= next_id and note('next', id) then
    next_id = id + 1
    call('HSET', M, 'next', string.format('%.0f', next_id))
  end
  if id + 0 < oldest and note('oldest', id) then
    oldest = id + 0
    call('HSET', M, 'oldest', id)
  end
  local task = stored_task(id, value)
  if not task then
    if note('unreadable', id) then
      call('HSET', M .. ':broken', id, value)
      call('HDEL', M .. ':tasks', id)
      call('ZREM', M .. ':taken', id)
    end
    return
  end
  if task.score and task.state ~= 't' and note('entry', 'taken ' .. id) then call('ZREM', M .. ':taken', id) end
  if task.state == '!' and not call('ZSCORE', M .. ':buried', place(task)) and note('stranded', id) then
    call('ZADD', M .. ':buried', 0, place(task))
  end
--#if LIST
  if task.state == 'r' and not is_indexed(task, listed) then
    -- A list that is out of order is searched from end to end.
    local there = ARGV[3] == '1' and call('LPOS', M .. ':ready', id)
    if not there and note('stranded', id) then index_task(task) end
  end
--#else
  if task.state == 'r' and not is_indexed(task) and note('stranded', id) then index_task(task) end
--#end
--#if LANE
  if task.state == 't' then
    local about = lane_of(task.lane or 'nil')
    if not (about and about.taken > 0) and note('lane', task.lane or 'nil') then repair_lane(task.lane or 'nil', 1) end
  end
--#end
  check_due(task)  --#if TIMED
  if task.key then check_key(task) end
end
local size, looked = 0, 0
for n = 4, #ARGV do
  local value = call('HGET', M .. ':tasks', ARGV[n])
  if value then
    check_task(ARGV[n], value)
    size = size + #value
  end
  looked = looked + 1
  if size > 1000000 then break end
end
return { looked, found }
