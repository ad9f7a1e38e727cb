-- The stored form of a task: a byte of flags, the moment of its put, the fields that the flags announce, and the data.
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
local Call = require 'call'
local Pending = require 'pending'

local pack = struct.pack
local unpack_struct = struct.unpack
local byte = string.byte
local sub = string.sub
local format = string.format
local TAKES, MOST_ATTEMPTS = Call.TAKES, Call.MOST_ATTEMPTS

local Entry = {}

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

Entry.text_at, Entry.text = text_at, text

-- The name of the failures of a task in its context, and their limits: see failures.py.
local FAILURES, MAX_FAILURES, MAX_ERROR, MAX_WORKER, MAX_TRACEBACK = 'tubes.failures', 5, 300, 100, 4096

-- Set the rarer fields of a stored task; return the position of its data.
local function read_more(task, value, at)
  local more = byte(value, at)
  at = at + 1
  if more % 2 >= 1 then task.most, at = unpack_struct('>I3', value, at) end
  if more % 4 >= 2 then task.key, at = text_at(value, at) end
  if more % 8 >= 4 then task.key_ttl, at = unpack_struct('>I7', value, at) end
  if more % 16 >= 8 then task.reason, at = text_at(value, at) end
  task.replaces = more % 32 >= 16
  if more % 64 >= 32 then task.context, at = text_at(value, at) end
  if more % 128 >= 64 then task.keep_done, at = unpack_struct('>I7', value, at) end
  if more >= 128 then task.past, at = sub(value, at, at + 15), at + 16 end
  return at
end

-- Parse a stored task: a table with id, state, attempts, lane, pri, ttl, ttr, created, body (where the data begins), and
-- the rarer fields most (attempts), key, key_ttl, reason, context, past. A taken task also has its owner, the number of a
-- session, and the number of its take.
function Entry.read(id, value)
  -- The last two fields make the table large enough for the others, so that it does not grow.
  local task = { id = id, value = value, state = 'r', attempts = 0, body = 9, take = 0, created = 0, lane = nil, owner = nil }
  -- A damaged task is too short: its reader reports it.
  if #value >= 8 then task.created = unpack_struct('>I7', value, 2) end
  local flags = byte(value, 1)
  if flags == 0 then return task end
  local at = 9
  if flags % 2 >= 1 then task.state = '~' end
  if flags % 4 >= 2 then task.state = '!' end
  if flags % 8 >= 4 then task.attempts, at = unpack_struct('>I3', value, at) end
  if flags % 16 >= 8 then task.pri, at = unpack_struct('>I4', value, at) end
  if flags % 32 >= 16 then task.ttl, at = unpack_struct('>I7', value, at) end
  if flags % 64 >= 32 then task.ttr, at = unpack_struct('>I7', value, at) end
  if flags % 128 >= 64 then
    local length = byte(value, at)
    if length < 255 then
      task.lane = sub(value, at + 1, at + length)
      at = at + 1 + length
    else
      task.lane, at = text_at(value, at)
    end
  end
  if flags >= 128 then at = read_more(task, value, at) end
  task.body = at
  return task
end

-- Return the number of takes of a stored task, not counting the current one.
function Entry.attempts_of(value)
  return byte(value, 1) % 8 >= 4 and unpack_struct('>I3', value, 9) or 0
end

-- Mark a stored task as taken by its score.
function Entry.set_taken(task, score)
  task.state, task.attempts = 't', math.min(task.attempts + 1, MOST_ATTEMPTS)
  task.take = score % TAKES
  task.owner = (score - task.take) / TAKES
end

-- Store a task whose facts have changed. The stored attempts do not count the current take.
function Entry.write(task)
  local flags, parts, attempts = 0, '', task.state == 't' and task.attempts - 1 or task.attempts
  if task.state == '~' then flags = 1 elseif task.state == '!' then flags = 2 end
  if attempts > 0 then flags, parts = flags + 4, pack('>I3', attempts) end
  if task.pri then flags, parts = flags + 8, parts .. pack('>I4', task.pri) end
  if task.ttl then flags, parts = flags + 16, parts .. pack('>I7', task.ttl) end
  if task.ttr then flags, parts = flags + 32, parts .. pack('>I7', task.ttr) end
  if task.lane then flags, parts = flags + 64, parts .. text(task.lane) end
  if task.most or task.key or task.reason or task.context or task.keep_done or task.past then
    local more, rest = 0, ''
    if task.most then more, rest = 1, pack('>I3', task.most) end
    if task.key then more, rest = more + 2, rest .. text(task.key) end
    if task.key_ttl then more, rest = more + 4, rest .. pack('>I7', task.key_ttl) end
    if task.reason then more, rest = more + 8, rest .. text(task.reason) end
    if task.replaces then more = more + 16 end
    if task.context then more, rest = more + 32, rest .. text(task.context) end
    if task.keep_done then more, rest = more + 64, rest .. pack('>I7', task.keep_done) end
    if task.past then more, rest = more + 128, rest .. task.past end
    flags, parts = flags + 128, parts .. pack('>I1', more) .. rest
  end
  task.value = pack('>I1', flags) .. sub(task.value, 2, 8) .. parts .. sub(task.value, task.body)
  task.body = 9 + #parts
  Pending.set(Call.keys.tasks, task.id, task.value)
end

-- Replace the data of a task. The caller stores it.
function Entry.set_data(task, data)
  task.value = sub(task.value, 1, task.body - 1) .. data
end

-- Return the due time of the task with an id; nil: never.
function Entry.due_of(id)
  return tonumber(Pending.score(Call.keys.due, pack('>I6', id)) or nil)
end

-- Return the task with an id in any state, or nil.
function Entry.find(id)
  local value = Pending.get(Call.keys.tasks, id)
  if not value then return nil end
  local task = Entry.read(id, value)
  local score = Pending.score(Call.keys.taken, id)
  if score then Entry.set_taken(task, score + 0) end
  if Call.plan.timed then task.due = Entry.due_of(id) end
  return task
end

-- True if a caller means this task. The server may have lost an earlier task with the same id: the moment of the put
-- distinguishes them. `expected`: 'c' and that moment; 't' and the number of a take, by which the session of the call
-- must hold it; '' or a number: any task.
local function is_expected(task, expected)
  local kind = sub(expected, 1, 1)
  if kind == 't' then return task.owner == Call.session and task.take == sub(expected, 2) + 0 end
  return kind ~= 'c' or task.created == sub(expected, 2) + 0
end

-- Return the task with an id in any state if the caller means it, else nil.
function Entry.find_expected(id, expected)
  local task = Entry.find(id)
  return task and is_expected(task, expected) and task or nil
end

-- Return the task with an id if the session of the call holds it, else nil. `expected`: the number of a take; '': any
-- take; 'c' and a moment: any take, if the task was put at that moment. `parsed`: the task, if it was read already.
function Entry.find_held(id, expected, parsed)
  local score = Pending.score(Call.keys.taken, id)
  local take = score and score - Call.session * TAKES
  if not take or take < 0 or take >= TAKES then return nil end
  local by_put = expected ~= '' and take ~= tonumber(expected)
  if by_put and byte(expected) ~= 99 then return nil end
  local task = parsed or Entry.read(id, Pending.get(Call.keys.tasks, id))
  task.state, task.take, task.owner = 't', take, Call.session
  if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
  if by_put and not is_expected(task, expected) then return nil end
  return task
end

-- Return the end of the ttl of a task; nil: it has no ttl.
function Entry.ttl_end(task)
  return task.ttl and task.created + task.ttl
end

-- True if this was the last attempt of the task.
function Entry.is_last(task)
  return task.most and task.attempts >= task.most
end

-- Count an event in the history of a task: its holder buried it (1), it was buried (2), kicked (3), its ttr expired
-- (4).
function Entry.count_event(task, what)
  local counts = { unpack_struct('>I4I4I4I4', task.past or string.rep('\0', 16)) }
  counts[what] = counts[what] + 1
  task.past = pack('>I4I4I4I4', unpack(counts, 1, 4))
end

-- Return the kind of a stored reason, and the reason.
function Entry.kind_of(words)
  local length = tonumber(sub(words, 1, 2), 16) or 0
  local reason = sub(words, 3 + length)
  return length > 0 and sub(words, 3, 2 + length) or reason, reason
end

-- Set facts in the context of a task: the names and values `facts[first]`, ...
function Entry.set_facts(task, facts, first)
  local changed, words, at, parts = {}, task.context or '', 1, {}
  for n = first, #facts, 2 do changed[facts[n]] = true end
  while at <= #words do
    local name, value
    name, at = text_at(words, at)
    value, at = text_at(words, at)
    if not changed[name] then parts[#parts + 1] = text(name) .. text(value) end
  end
  for n = first, #facts do parts[#parts + 1] = text(facts[n]) end
  task.context = table.concat(parts)
end

-- Return a fact in the context of a task, or '' if it lacks this fact.
local function fact(task, wanted)
  local words, at = task.context or '', 1
  while at <= #words do
    local name, value
    name, at = text_at(words, at)
    value, at = text_at(words, at)
    if name == wanted then return value end
  end
  return ''
end

-- Return the beginning of a text as a part of a line.
local function line(words, most)
  words = string.gsub(words, '%c', ' ')
  if #words <= most then return words end
  while math.floor(byte(words, most + 1) / 64) == 2 do most = most - 1 end -- Within a character.
  return sub(words, 1, most)
end

-- Add a failure to the context of a task, as failures.py does. `task.trace`: the worker, a line break and the traceback
-- (nil or '': unknown).
function Entry.add_failure(task, reason)
  local worker, trace = string.match(task.trace or '', '^([^\n]*)\n?(.*)$')
  local error = reason and select(2, Entry.kind_of(reason)) or ''
  local before = fact(task, FAILURES)
  local lines = { format('%.0f\t%d\t', Call.now, task.attempts) .. line(worker, MAX_WORKER) .. '\t' .. line(error, MAX_ERROR) }
  for one in string.gmatch(sub(before, 1, (string.find(before, '\n\n', 1, true) or 0) - 1), '[^\n]+') do
    if #lines < MAX_FAILURES then lines[#lines + 1] = one end
  end
  local words = table.concat(lines, '\n')
  if trace ~= '' then words = words .. '\n\n' .. string.gsub(sub(trace, -MAX_TRACEBACK), '^[\128-\191]+', '') end
  Entry.set_facts(task, { FAILURES, words }, 1)
end

-- Extend the ttl of a task by a delay, but not beyond LONGEST from now on.
function Entry.extend_ttl(task, span)
  if task.ttl then task.ttl = math.min(task.ttl + span, Call.now - task.created + Call.LONGEST) end
end

-- Let a task live for `span` microseconds from now, or from its put if the clock was set back to before the put.
function Entry.set_ttl(task, span)
  task.ttl = math.max(Call.now - task.created, 0) + span
end

-- Return the facts of a task: id, state, attempts, the number of its take (0: it is not taken) and its due time
-- (-1: never). One string is cheaper than a table for the server and for the caller. `encode` appends the stored
-- task, or only its header if `bare`, for a caller that has the data.
function Entry.encode_facts(task)
  return pack('>I8c1I4I4i8', task.id, task.state, task.attempts, task.state == 't' and task.take or 0, task.due or -1)
end

function Entry.encode(task, bare)
  return Entry.encode_facts(task) .. (bare and sub(task.value, 1, task.body - 1) or task.value)
end

-- The same for a task that `find_held` has found.
function Entry.encode_held(task)
  task.due = Entry.due_of(task.id)
  return Entry.encode(task)
end

-- The same for many tasks that one call has taken: their ids, attempts and due times as a string each; '1' if there
-- are more; the number of the take; and the tasks.
function Entry.encode_many(tasks, more)
  local ids, attempts, dues, values = {}, {}, {}, {}
  for n = 1, #tasks do
    local task = tasks[n]
    ids[n], attempts[n], values[n] = task.id, task.attempts, task.value
    if Call.plan.timed then dues[n] = format('%.0f', task.due or -1) end
  end
  return { table.concat(ids, ' '), table.concat(attempts, ' '), table.concat(dues, ' '), more and '1' or '', Call.take, values }
end

-- Notify the session that holds a task of its loss, unless that session is the caller. A cancel is always reported,
-- since its caller may share a session with the handler.
function Entry.notify_holder(task, event)
  if event ~= 'cancel' and task.owner == Call.session then return end
  -- '%s' would end at a NUL.
  local reason = event == 'cancel' and task.reason or ''
  redis.pcall('PUBLISH', Call.keys.lost, format('%s %d %d ', event, task.id, task.take) .. reason)
end

-- Publish an event of a task to listeners: its name, the facts of the task, and the stored task. The record of a kept
-- task is sent whole: ':done' may forget it as soon as another task ends.
function Entry.publish(event, task)
  local take = task.state == 't' and task.take or task.state == '-' and task.record and 1 or 0
  local head = format('%s %d %s %d %d %.0f ', event, task.id, task.state, task.attempts, take, task.due or -1)
  redis.pcall('PUBLISH', Call.keys.events, head .. (task.state == '-' and task.record or task.value))
end

return Entry
