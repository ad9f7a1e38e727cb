-- The invariants between the tasks of a tube and the keys that index them, one function each. The stored tasks are
-- the truth, together with ':taken' for tasks stored as ready; all other keys follow from them.

-- Return the number that an id stands for, or nil if it is not an id.
local function id_of(words)
  local id = string.match(words, '^%d+$') and #words <= 15 and tonumber(words)
  return id and id < 281474976710656 and string.format('%.0f', id) == words and id or nil
end

-- True if a text is UTF-8. Lone surrogates are valid, as in Python's strings.
local function is_text(words)
  if not string.find(words, '[\128-\255]') then return true end
  words = string.gsub(words, '[\194-\223][\128-\191]', ' ')
  words = string.gsub(words, '\224[\160-\191][\128-\191]', ' ')
  words = string.gsub(words, '[\225-\239][\128-\191][\128-\191]', ' ')
  words = string.gsub(words, '\240[\144-\191][\128-\191][\128-\191]', ' ')
  words = string.gsub(words, '[\241-\243][\128-\191][\128-\191][\128-\191]', ' ')
  words = string.gsub(words, '\244[\128-\143][\128-\191][\128-\191]', ' ')
  return not string.find(words, '[\128-\255]')
end

-- True if all texts of a task are valid, including its context.
local function has_texts(task)
  for _, words in ipairs({ task.key or '', task.reason or '', task.lane or '' }) do
    if not is_text(words) then return false end
  end
  if task.reason and not string.find(task.reason, '^%x%x') then return false end
  local context, at, count = task.context or '', 1, 0
  while at <= #context do
    local words
    words, at = text_at(context, at)
    if at > #context + 1 or not is_text(words) then return false end
    count = count + 1
  end
  return count % 2 == 0
end

-- Parse a task as `read` does, and set its score if it is taken. nil: this driver could not have written it.
local function stored_task(id, value)
  local flags = #value >= 8 and byte(value, 1)
  if not flags or flags % 4 == 3 then return nil end
  if flags % 2 >= 1 or flags % 64 >= 16 then return nil end  --#unless TIMED
  if flags % 16 >= 8 then return nil end  --#unless PRI
  if flags % 128 >= 64 then return nil end  --#unless LANE
  local reads, task = pcall(read, id, value)
  if not reads or task.body > #value + 1 then return nil end
  local whole, right = pcall(has_texts, task)
  if not whole or not right then return nil end
  if not pcall(place, task) then return nil end
  task.score = call('ZSCORE', M .. ':taken', id)
  if task.score and task.state == 'r' then task.state = 't' end
  return task
end

-- Return the task with an id, or nil if it does not exist or cannot be read.
local function task_of(id)
  id = string.format('%.0f', id)
  local value = call('HGET', M .. ':tasks', id)
  return value and stored_task(id, value)
end

-- Return the task whose id is in a place, if that is its correct place.
local function task_at(at)
  if #at < 6 then return nil end
  local task = task_of(id_at(at))
  return task and place(task) == at and task
end

--#if LIST
-- Return the number of smaller ids in the list, which is sorted.
local function index_of(id)
  local low, high = 0, call('LLEN', M .. ':ready')
  while low < high do
    local middle = math.floor((low + high) / 2)
    local listed = tonumber(call('LINDEX', M .. ':ready', middle) or nil)
    if listed and listed < id then low = middle + 1 else high = middle end
  end
  return low
end

-- True if a ready task is in the index of ready tasks. `listed`: the ids in a part of the list, if it was read.
local function is_indexed(task, listed)
  if call('ZSCORE', M .. ':back', place(task)) then return true end
  if listed then return listed[task.id] end
  return call('LINDEX', M .. ':ready', index_of(task.id + 0)) == task.id
end

-- Add a task to ':back' like a released task: then its position in the list does not matter.
local function index_task(task)
  call('ZADD', M .. ':back', 0, place(task))
  call('HINCRBY', M, 'loose', 1)
end

--#elif LANE
-- Read the record of a lane: its number, the number of its taken tasks, the place on offer, and in a tube with paces
-- the other fields of PACE. nil: there is no record; false: it cannot be read.
local function lane_of(name)
  local record = call('HGET', M .. ':lanes', name)
  if not record then return nil end
  local about = { key = '', head = '', taken = 0, cooldown = 0, turn = 0 }
  if byte(record, 1) ~= 255 then
    local head = sub(record, 2)
    if byte(record, 1) ~= 254 then about.key, head = sub(record, 1, 5), sub(record, 6) end
    if (head == '' and about.key == '') or (head ~= '' and #head < 6) then return false end
    if call('ZSCORE', M .. ':offers', head) then about.head = head else about.taken = 1 end
  else
    local reads, fields = pcall(function() return { cmsgpack.unpack(sub(record, 2)) } end)
    -- The record may be older than the reason and the burst, its fields 18 to 20, and than the capacity.
    if reads and #fields >= 17 then
      for n = #fields + 1, 20 do fields[n] = n == 18 and '' or 0 end
    end
    if reads then fields[#PACE] = fields[#PACE] or -1 end  --#if LANE_ROOM
    if not reads or #fields ~= #PACE or not META.pacing then return false end
    for n = 1, #PACE do
      local right = tonumber(fields[n])
      if PACE[n] == 'key' or PACE[n] == 'head' or PACE[n] == 'reason' then right = tostring(fields[n]) end
      if right ~= fields[n] then return false end
      about[PACE[n]] = fields[n]
    end
    if about.taken < 0 or about.cooldown < 0 then return false end
  end
  if #about.key ~= 5 and about.key ~= '' then return false end
  if about.key ~= '' and unpack_struct('>I5', about.key) >= 549755813888 then return false end
  if about.head ~= '' and #about.head < 6 then return false end
  return about
end

-- True if a lane offers the correct task, and if a lane without an offer still needs its record.
local function is_lane_right(name, about)
  lane, lane_key = name, about.key ~= '' and about.key
  local full = about.taken > 0
  if META.pacing then
    read_pace(0)
    full = pace.full
    local score = call('ZSCORE', M .. ':rests', name)
    if about.cooldown ~= (score and score + 0 or 0) then return false end
  end
  local first = lane_key and next_in_lane()
  if about.head == '' then
    if first and not full then return false end
    if about.taken > 0 or about.cooldown > 0 then return true end
    return META.pacing and (pace.interval >= 0 or pace.most > 0 or pace.from >= 0 or pace.burst > 0 or (pace.capacity or -1) >= 0)
  end
  local task = task_at(about.head)
  if full or not task or task.state ~= 'r' or (task.lane or 'nil') ~= name or (first and first < about.head) then return false end
  local score = call('ZSCORE', M .. ':offers', about.head)
  return score and score + 0 == about.turn
end

-- Rewrite the record of a lane, and offer its best task. `taken`: the number of its taken tasks, if the record may be
-- wrong; `at`: the place of a ready task to add.
local function repair_lane(name, taken, at)
  local about = lane_of(name)
  if about == false then
    call('HDEL', M .. ':lanes', name)
    about = nil
  end
  lane, lane_record, lane_key, lane_taken, lane_head, pace = name, about, false, (taken or 0) > 0, false, nil
  if META.pacing then
    read_pace(0)
    pace.taken = taken or pace.taken
    if pace.cooldown > 0 then call('ZADD', M .. ':rests', pace.cooldown, name) else call('ZREM', M .. ':rests', name) end
  elseif about then
    lane_key, lane_head = about.key ~= '' and about.key, about.head ~= '' and about.head
    lane_taken = (taken or about.taken) > 0
  end
  if not lane_key then
    META.lanes = call('HINCRBY', M, 'lanes', 1)
    lane_key = pack('>I5', META.lanes)
  end
  if lane_head then
    call('ZREM', M .. ':offers', lane_head)
    call('ZADD', M .. ':behind', 0, lane_key .. lane_head)
    lane_head = false
  end
  if at then call('ZADD', M .. ':behind', 0, lane_key .. at) end
  -- Remove places that do not belong to a ready task of this lane.
  local first = next_in_lane()
  while first do
    local task = task_at(first)
    if task and task.state == 'r' and (task.lane or 'nil') == name then break end
    call('ZREM', M .. ':behind', lane_key .. first)
    first = next_in_lane()
  end
  if META.pacing then return write_pace() end
  if first and not lane_taken then
    call('ZREM', M .. ':behind', lane_key .. first)
    call('ZADD', M .. ':offers', 0, first)
    lane_head = first
  end
  if lane_taken or lane_head then
    call('HSET', M .. ':lanes', name, lane_taken and lane_key or lane_key .. lane_head)
  else
    call('HDEL', M .. ':lanes', name)
  end
end

local function is_indexed(task)
  local about = lane_of(task.lane or 'nil')
  if not about then return false end
  if about.head == place(task) then return call('ZSCORE', M .. ':offers', about.head) end
  return call('ZSCORE', M .. ':behind', about.key .. place(task))
end

local function index_task(task)
  repair_lane(task.lane or 'nil', nil, place(task))
end

--#else
local function is_indexed(task)
  return call('ZSCORE', M .. ':ready', place(task))
end

local function index_task(task)
  call('ZADD', M .. ':ready', 0, place(task))
end
--#end
