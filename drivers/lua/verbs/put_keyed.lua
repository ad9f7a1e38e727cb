-- Add all of the given tasks, or none, as put_many does, but one by one, because some have keys.
-- ARGV  6 to 11 as for put_many, 12… words as there, and before the data its key ('': none), and 'keep', 'replace',
--       'update' or 'raise'; for a task that is buried at once the reason instead of the key, and 'bury'
-- reply  a list: the moment of the put in 7 bytes and the id of the first new task; then for each task '' if it is new,
--        the living task with its key as `encode_task` encodes it, or '?' and its id if the reply is too large, or the
--        id of the remembered task; nil if the tube is full; the error DUPLICATE names the existing task and the item,
--        counted from 0
--#include begin
local encoded_bytes = 0
-- Return an existing task for the reply.
local function encode_or_id(id)
  if encoded_bytes >= BYTES then return '?' .. id end
  local task = find(id)
  if not task then return tonumber(id) end
  local facts = encode_task(task)
  encoded_bytes = encoded_bytes + #facts
  return facts
end
if replayed then
--#slow
  local reply = { sub(replayed, 1, 7) .. string.match(replayed, '^%d+', 8) }
  for mark in string.gmatch(string.match(replayed, ';(.*)', 8), '[^,]+') do
    local id = string.match(mark, '%d+')
    reply[#reply + 1] = id and encode_or_id(id) or ''
  end
  return reply
--#fast
end
--#if AGAIN
--#if KEEPS
if not encode_done(ARGV[21], ARGV[22]) then return redis.error_reply('NOTFOUND there is no such task') end
--#else
if true then return redis.error_reply('NOTFOUND there is no such task') end
--#end
--#end
local size = tonumber(ARGV[6])
--#include put_words
--#include next_id
local created, first = pack('>I7', now), META.next + 0
local id = first
local result = created .. META.next .. ';'
-- Decide about each task before the first put.
local all, needed, made = {}, 0, {}
--#if LANE_ROOM
local lanes, more, new, lane_made = {}, {}, {}, {}
local function grow(name, by)
  if not more[name] then lanes[#lanes + 1], more[name] = name, 0 end
  more[name] = more[name] + by
end
--#end
local added = 0  --#if PUT_LIMITED
while #all < size do
  local flags, key, how = words[at + 1], words[at + 6], words[at + 7]
  local span, count = tonumber(words[at + 2]), tonumber(words[at])
  local pri, named = tonumber(words[at + 3]), byte(flags) % 128 >= 64 and words[at + 4]
  local head = flags .. created .. words[at + 5]
  at = at + 7
  for n = at + 1, at + count do
    local task = {
      id = string.format('%d', id), value = head .. words[n], attempts = 0, state = 'new', created = now,
      due = span and now + span, pri = pri, lane = named, name = key ~= '' and how ~= 'bury' and key, why = how == 'bury' and key, kept = false,
    }
    local found, lives
    if task.name then
      found, lives = made[key], true
      if not found then found, lives = find_key(key) end
      if found and how == 'raise' then return redis.error_reply('DUPLICATE ' .. found .. ' ' .. #all) end
      task.kept, task.known = found and how ~= 'replace', not lives and found
      task.raw = how == 'update' and words[n]
    end
    if not task.kept then
      -- A task that replaces another needs no room.
      if not (found and lives) then needed = needed + 1 end
--#if PUT_LIMITED
      local old = lives and not made[key] and find(found)
      if not lives or (old and (old.state == 't' or old.state == '!')) then added = added + 1 end
--#end
--#if LANE_ROOM
      local name = task.lane or 'nil'
      if found and lives then grow(lane_made[key] or (find(found).lane or 'nil'), -1) end
      grow(name, 1)
      new[name] = (new[name] or 0) + 1
      if task.name then lane_made[key] = name end
--#end
      if task.name then made[key] = task.id end
      place(task)  --#if RANK
      id = id + 1
    end
    all[#all + 1] = task
  end
  at = at + count + 1
end
--#if PUT_LIMITED
local others = call('HLEN', M .. ':tasks') - call('ZCARD', M .. ':taken') - call('ZCARD', M .. ':buried')
if added > 0 and others + added > tonumber(ARGV[#ARGV]) then
--#include flush
  return redis.error_reply('FULL ' .. added)
end
--#end
--#if ROOM
local capacity, callers, process = tonumber(ARGV[9]), ARGV[10] or '', ARGV[11]
--#include check_room
--#end
local reply, marks, updated = { created .. META.next }, {}, false
META.next = id
fill_lanes(new)  --#if LANE_ROOM
--#if AGAIN
forget_done({ pack('>I6', ARGV[21]) })  --#if KEEPS
--#end
for n = 1, size do
  local task, due = all[n], all[n].due
  local found, lives
  if task.name then
    lives = call('HGET', M .. ':keys', task.name)
    found = lives or task.known
  end
  if task.kept then
    if lives and task.raw then
--#slow
      local raw, task = task.raw, find(found)
      local due = task.due
      local function change(task)
        task.value = sub(task.value, 1, task.body - 1) .. raw
        if task.state == 't' then write(task) end
      end
--#move update
      updated = true
--#fast
    end
    reply[n + 1], marks[n] = lives and encode_or_id(found) or tonumber(found), found
  else
    reply[n + 1], marks[n] = '', 'n'
    local known = task.known
    if lives then
      local task = find(found)
--#move delete
      known = task.key_ttl
    end
--#if TIMED
    if byte(task.value) % 2 == 1 then
--#move put_delayed new
    else
--#move put new
    end
--#else
--#move put new
--#end
    if task.name then assign_key(task.name, task.id, lives, known) end
    if task.why then
--#slow
      local why, due = task.why
      task = find(task.id)
      task.reason = why
--#move bury r
--#fast
    end
  end
end
if ARGV[7] ~= '' then call('UNLINK', M .. ':staged:' .. ARGV[7]) end
if callers ~= '' then call('HDEL', M .. ':waiting', process .. ':room') end  --#if ROOM
if META.next == first and ARGV[7] == '' and not updated then
  -- All tasks exist: return without a write, which a server that is out of memory would refuse.
--#slow
--#include flush
  return reply
--#fast
end
result = result .. table.concat(marks, ',')
--#done result
return reply
