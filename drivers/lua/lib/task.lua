-- The stored form of a task: a byte of flags, the moment of its put, the fields that the flags announce, and the
-- data.
--
--   flags  1 delayed, 2 buried, 4 attempts (3 bytes), 8 pri (4), 16 ttl (7), 32 ttr (7), 64 lane (a text),
--          128 a second byte of flags, for fields that few tasks have:
--          1 max_attempts (3 bytes), 2 key (a text), 4 key_ttl (7), 8 the reason why it is buried (a text that consists
--          of two hexadecimal digits, the length of its kind, the kind, and the reason; 00: the kind is the reason),
--          16 its put has replaced another task (such a put cannot be undone),
--          32 its context (a text that consists of texts: name, value, name, value, ...), 64 keep_done (7),
--          128 its history: how often its holder buried it, it was buried, kicked, and its ttr expired (4 each)
--
-- A text has its length in front: a byte, or byte 255 and 4 bytes. Numbers are unsigned and big-endian. Only ':taken'
-- says that a task is taken, so a take and an ack, which nearly all tasks see once, do not write the task again.
--
-- The score of a taken task is the number of its session times TAKES, plus the number of the take: the number of the
-- call modulo TAKES. A process counts its calls from a random number on, so two takes have different numbers even if
-- a server has forgotten one of them.
local this_take = ARGV[4] % TAKES
local pack = struct.pack
local unpack_struct = struct.unpack
local byte = string.byte
local sub = string.sub

local function text_at(value, at)
  local length
  length, at = unpack_struct('>I1', value, at)
  if length == 255 then length, at = unpack_struct('>I4', value, at) end
  return sub(value, at, at + length - 1), at + length
end

local function text(words)
  local length = #words
  return (length < 255 and pack('>I1', length) or pack('>I1I4', 255, length)) .. words
end

-- Parse a stored task: a table with id, state, attempts, created, lane, pri, ttl, ttr, body (where the data begins),
-- and the rarer fields most (attempts), key, key_ttl, reason, context, past. A taken task also has its owner, the
-- number of a session, and the number of its take.
local function read(id, value)
  -- A table with all fields from the start does not grow later, which would be slow.
  local task = {
    id = id, value = value, state = 'r', attempts = 0, owner = false, take = 0, body = 9, most = false, key = false,
    created = unpack_struct('>I7', value, 2),  --#if TIMED|RANK
    ttl = false, ttr = false, due = false,  --#if TIMED
    pri = false,  --#if PRI
    lane = false,  --#if LANE
  }
  --#include read_task
  return task
end

-- Return the number of takes of a stored task, not counting the current one.
local function attempts_of(value)
  return byte(value, 1) % 8 >= 4 and unpack_struct('>I3', value, 9) or 0
end

-- Mark a stored task as taken by its score.
local function set_taken(task, score)
  task.state, task.attempts = 't', math.min(task.attempts + 1, MOST_ATTEMPTS)
  task.take = score % TAKES
  task.owner = (score - task.take) / TAKES
end

-- Store a task whose facts have changed. The stored attempts do not count the current take.
local function write(task)
  local flags, parts, attempts = 0, '', task.state == 't' and task.attempts - 1 or task.attempts
  if task.state == '~' then flags = 1 elseif task.state == '!' then flags = 2 end
  if attempts > 0 then flags, parts = flags + 4, pack('>I3', attempts) end
  if task.pri then flags, parts = flags + 8, parts .. pack('>I4', task.pri) end  --#if PRI
--#if TIMED
  if task.ttl then flags, parts = flags + 16, parts .. pack('>I7', task.ttl) end
  if task.ttr then flags, parts = flags + 32, parts .. pack('>I7', task.ttr) end
--#end
  if task.lane then flags, parts = flags + 64, parts .. text(task.lane) end  --#if LANE
--#if KEEPS
  if task.most or task.key or task.reason or task.context or task.keep_done or task.past then
--#else
  if task.most or task.key or task.reason or task.context or task.past then
--#end
--#slow
    local more, rest = 0, ''
    if task.most then more, rest = 1, pack('>I3', task.most) end
    if task.key then more, rest = more + 2, rest .. text(task.key) end
    if task.key_ttl then more, rest = more + 4, rest .. pack('>I7', task.key_ttl) end
    if task.reason then more, rest = more + 8, rest .. text(task.reason) end
    if task.replaces then more = more + 16 end
    if task.context then more, rest = more + 32, rest .. text(task.context) end
    if task.keep_done then more, rest = more + 64, rest .. pack('>I7', task.keep_done) end  --#if KEEPS
    if task.past then more, rest = more + 128, rest .. task.past end
    flags, parts = flags + 128, parts .. pack('>I1', more) .. rest
--#fast
  end
  task.value = pack('>I1', flags) .. sub(task.value, 2, 8) .. parts .. sub(task.value, task.body)
  task.body = 9 + #parts
  call('HSET', M .. ':tasks', task.id, task.value)
end

-- Return the due time of the task with an id; nil: never.
local function due_of(id)
  return tonumber(call('ZSCORE', M .. ':due', pack('>I6', id)) or nil)
end

-- Return the task with an id in any state, or nil.
local function find(id)
  local value = call('HGET', M .. ':tasks', id)
  if not value then return nil end
  local task = read(id, value)
  local score = call('ZSCORE', M .. ':taken', id)
  if score then set_taken(task, score + 0) end
  task.due = due_of(id)  --#if TIMED
  return task
end

-- Return the end of the ttl of a task; false: it has no ttl.
local function ttl_end(task)
  return task.ttl and task.created + task.ttl
end

-- True if a caller means this task. The server may have lost an earlier task with the same id: the moment of the put
-- distinguishes them. `expected`: 'c' and that moment; 't' and the number of a take, by which the session of ARGV[1]
-- must hold it; '' or a number: any task.
local function is_expected(task, expected)
  local kind = sub(expected, 1, 1)
  if kind == 't' then return task.owner == ARGV[1] + 0 and task.take == sub(expected, 2) + 0 end
  return kind ~= 'c' or unpack_struct('>I7', task.value, 2) == sub(expected, 2) + 0
end

-- Return the task with an id in any state if the caller means it, else nil.
local function find_expected(id, expected)
  local task = find(id)
  return task and is_expected(task, expected) and task or nil
end

-- Return the facts of a task: id, state, attempts, the number of its take (0: it is not taken) and its due time
-- (-1: never). One string is cheaper than a table for the server and for the caller. `encode_task` appends the stored
-- task, or only its header if `bare`, for a caller that has the data.
local function encode_facts(task)
  --#include encode_facts
  return result
end

local function encode_task(task, bare)
  return encode_facts(task) .. (bare and sub(task.value, 1, task.body - 1) or task.value)
end

-- The same for a task that `find_held` has found.
local function encode_held(task)
  task.due = due_of(task.id)
  return encode_task(task)
end

-- The same for many tasks that one call has taken: their ids, attempts and due times as a string each; '1' if there
-- are more; the number of the take; and the tasks.
local function encode_tasks(tasks, more)
  local ids, attempts, dues, values = {}, {}, {}, {}
  for n = 1, #tasks do
    local task = tasks[n]
    ids[n], attempts[n], values[n] = task.id, task.attempts, task.value
    dues[n] = string.format('%.0f', task.due or -1)  --#if TIMED
  end
  return { table.concat(ids, ' '), table.concat(attempts, ' '), table.concat(dues, ' '), more and '1' or '', this_take, values }
end

-- Notify the session that holds a task of its loss, unless that session is the caller. A cancel is always reported,
-- since its caller may share a session with the handler.
local function notify_holder(task, event)
  if event ~= 'cancel' and task.owner == ARGV[1] + 0 then return end
  -- '%s' would end at a NUL.
  local reason = event == 'cancel' and task.reason or ''
  redis.pcall('PUBLISH', M .. ':lost', string.format('%s %d %d ', event, task.id, task.take) .. reason)
end

-- Publish an event to listeners: its name, the facts of the task, and the task.
local function publish(event, id, state, attempts, take, due, value)
  local head = string.format('%s %d %s %d %d %.0f ', event, id, state, attempts, take, due or -1)
  redis.pcall('PUBLISH', M .. ':events', head .. value)
end
