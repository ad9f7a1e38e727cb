-- Check some entries of a key: each task must exist, and belong in this key at this place.
-- ARGV  3 the key; 'meta': the sessions in the meta hash, 4 the cursor ('0': the beginning), 5 of a list the last id
--       that was checked, 6 the next id of the tube, if known
-- reply  {the next cursor ('0': the end), the problems, a list of details}. The details: of 'taken' id, score and lane
--        of each task, and 1 if the end of its ttr is missing; of 'lanes' name, number and taken tasks of each lane; of
--        'leases' the numbers of the sessions; of 'due' the ids of delayed tasks; of 'ready' as a list the last id
local which, details = ARGV[3], {}
local index = M .. (which == 'meta' and '' or ':' .. which)
local function report(...)
  for _, word in ipairs({ ... }) do details[#details + 1] = word end
end
-- Index a ready task again if this entry was its only one.
local function restore(task)
  if task and task.state == 'r' and not is_indexed(task) then index_task(task) end
end
-- Record a wrong entry by its id.
local function note_place(at)
  return note('entry', which .. ' ' .. (#at >= 6 and string.format('%.0f', id_at(at)) or at))
end
local check = {}
local function places(state)
  return function(at)
    local task = task_at(at)
    if (not task or task.state ~= state) and note_place(at) then
      call('ZREM', index, at)
    end
  end
end
check.buried = places('!')
--#if LIST
check.back = places('r')
--#elif LANE
function check.offers(at)
  local task = task_at(at)
  local about = task and task.state == 'r' and lane_of(task.lane or 'nil')
  if not (about and about.head == at) and note_place(at) then
    call('ZREM', index, at)
    restore(task)
  end
end
function check.behind(entry)
  local at = sub(entry, 6)
  local task = task_at(at)
  local about = task and task.state == 'r' and lane_of(task.lane or 'nil')
  if not (about and about.key == sub(entry, 1, 5) and about.head ~= at) and note_place(at) then
    call('ZREM', index, entry)
    restore(task)
  end
end
function check.rests(name, moment)
  local about = lane_of(name)
  if (not about or about.cooldown ~= moment + 0) and note('lane', name) then
    call('ZREM', index, name)
    if about then repair_lane(name) end
  end
end
function check.lanes(name, record)
  if byte(record, 1) == 255 and not META.pacing and note('field', 'pacing') then
    META.pacing = '0 0 1 0 0'
    call('HSET', M, 'pacing', META.pacing)
  end
  local about = lane_of(name)
  if about == nil then return end
  if (not is_text(name) or not about or not is_lane_right(name, about)) and note('lane', name) then
    repair_lane(name)
    about = lane_of(name)
  end
  if not about then return end
  local number = about.key ~= '' and unpack_struct('>I5', about.key) or 0
  if number > (META.lanes or 0) + 0 and note('field', 'lanes') then
    META.lanes = number
    call('HSET', M, 'lanes', string.format('%d', number))
  end
  report(name, about.key, about.taken)
end
--#else
check.ready = places('r')
--#end
function check.taken(id, score)
  local number = id_of(id)
  local task = number and task_of(number)
  if (not task or task.state ~= 't') and note('entry', 'taken ' .. id) then
    call('ZREM', index, id)
    return
  end
  if not task then return end
  score = score + 0
  if (score < 0 or score >= 9007199254740992 or score % 1 ~= 0) and note('entry', 'taken ' .. id) then
    -- The take of a session that does not exist, which is handled like an expired session.
    score = 0
    call('ZADD', index, score, id)
  end
  local timeless = false
  timeless = task.ttr and not call('ZSCORE', M .. ':due', pack('>I6', id))  --#if TIMED
  report(id, string.format('%.0f', score), task.lane or 'nil', timeless and 1 or 0)
end
--#if TIMED
function check.due(member)
  local id = #member == 6 and unpack_struct('>I6', member)
  local task = id and task_of(id)
  if not task and note('entry', 'due ' .. (id and string.format('%.0f', id) or member)) then call('ZREM', index, member) end
  if task and task.state == '~' then report(task.id) end
end
--#end
function check.keys(key, value)
  local task = id_of(value) and task_of(id_of(value))
  if not (task and task.key == key) and note('key', key) then call('HDEL', index, key) end
end
function check.known(field, records)
  if (#records % 21 ~= 0 or not string.match(field, '^%d+$')) and note('entry', 'known ' .. field) then call('HDEL', index, field) end
end
--#if KEEPS
-- Return the end of the time for which a done task is kept; nil if it cannot be read.
local function kept_until(id, record)
  local reads, _, _, ends, _, has, at = pcall(unpack_struct, '>c1I7I7I3I1', record)
  if not reads or not id_of(id) then return nil end
  if has == 1 then
    reads, _, at = pcall(text_at, record, at)
    if not reads then return nil end
  end
  return stored_task(id, sub(record, at)) and ends
end
function check.done(id, record)
  local ends = kept_until(id, record)
  local score = ends and call('ZSCORE', M .. ':ended', pack('>I6', id))
  if not (score and score + 0 == ends) and note('entry', 'done ' .. id) then
    if ends then call('ZADD', M .. ':ended', ends, pack('>I6', id)) else call('HDEL', index, id) end
  end
end
function check.ended(member)
  local id = #member == 6 and string.format('%.0f', unpack_struct('>I6', member))
  if not (id and call('HEXISTS', M .. ':done', id) == 1) and note('entry', 'ended ' .. (id or member)) then
    call('ZREM', index, member)
  end
end
--#end
function check.waiting(process, about)
  local size, watched = string.match(about, '^0 (%d+) (%d+)$')
  local room = string.match(process, '^(.*):room$')
  if not (size and room) and not string.match(about, '^%d+ %d+$') then
    if note('waiting', process) then call('HDEL', index, process) end
  elseif size and tonumber(watched) > now and call('ZSCORE', M .. ':wanting', room) ~= size and note('waiting', process) then
    call('ZADD', M .. ':wanting', size, room)
  end
end
function check.leases(token)
  local number = tonumber(string.match(token, '^s(%d+)%.') or nil)
  if not number or number >= 134217728 then
    if note('session', token) then call('ZREM', index, token) end
    return
  end
  if number > (tonumber(call('HGET', M, 'sessions') or 0)) and note('field', 'sessions') then call('HSET', M, 'sessions', number) end
  -- The field of the session is missing: end it, so that the next call of any session releases its tasks.
  if call('HEXISTS', M, token) == 0 and tonumber(call('ZSCORE', index, token)) > now and note('session', token) then
    call('ZADD', index, now, token)
  end
  report(number)
end
function check.meta(field, value)
  local session = string.match(field, '^a(s.+)%.[^.]+%.[^.]+$')
  if session then
    if call('HEXISTS', M, session) == 0 and note('answer', field) then call('HDEL', M, field) end
  elseif string.match(field, '^s%d+%.') then
    local named = 'u' .. string.match(value, '^%x*')
    -- A caller of the session has a minute to renew its lease.
    if not call('ZSCORE', M .. ':leases', field) and note('session', field) then call('ZADD', M .. ':leases', now + 60000000, field) end
    if not call('HGET', M, named) and note('session', field) then call('HSET', M, named, field) end
  elseif string.match(field, '^u%x+$') and call('HEXISTS', M, value) == 0 and note('session', field) then
    call('HDEL', M, field)
  end
end
--#if LIST
-- A list is checked in parts: its ids ascend, even while tasks are added and removed.
if which == 'ready' then
  local last, first, next_id = tonumber(ARGV[5]) or -1, ARGV[4] + 0, math.max(META.next, ARGV[6])
  if first > 0 and tonumber(call('LINDEX', index, first - 1) or nil) ~= last then first = index_of(last + 1) end
  local ids, wrong = call('LRANGE', index, first, first + 999), 0
  for n = 1, #ids do
    local id = id_of(ids[n])
    if id and id > last and id < next_id then
      last = id
    elseif note('entry', 'ready ' .. ids[n]) then
      call('LSET', index, first + n - 1, '')
      wrong = wrong + 1
    end
  end
  if wrong > 0 then call('LREM', index, 0, '') end
  return { #ids < 1000 and '0' or string.format('%d', first + 1000 - wrong), found, { string.format('%d', last) } }
end
--#end
local hashes = { lanes = true, keys = true, known = true, done = true, meta = true, waiting = true }
local some = hashes[which] and call('HSCAN', index, ARGV[4], 'COUNT', 100) or call('ZSCAN', index, ARGV[4], 'COUNT', 100)
for n = 1, #some[2], 2 do check[which](some[2][n], some[2][n + 1]) end
return { some[1], found, details }
