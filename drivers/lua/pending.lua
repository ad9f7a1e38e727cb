-- Commands of a batch, sent together: a call that moves many tasks one by one runs inside `Pending.run`.
--
-- There, `load_fields` and `load_scores` read many at once, and writes of hashes and sorted sets are noted. `get` and `score` return what
-- was noted or loaded, or ask the server. At the end each key gets one HSET, HDEL, ZADD or ZREM. Outside of `run` each
-- command is sent at once. A command that reads a range of a key inside of `run` needs `Pending.send` before it.
local Lists = require 'lists'

local call = redis.call

-- `bytes`: what a call has read and written of hashes so far.
local Pending = { bytes = 0 }
-- Inside of `run`, by key, nil outside: `known` says what is known of its fields or members (false: gone), `changed` lists
-- those that were changed, some of them several times, `count` is its length, `kind` HSET or ZADD; `popped` are the first
-- members of a sorted set, which were popped ahead; `gone` all that were popped, with their scores, and `last` the one that
-- the caller got last.
local keys

local function entry_of(key)
  local entry = keys[key]
  if not entry then
    entry = { known = {}, changed = {}, count = 0, kind = false, popped = false, gone = {}, last = false }
    keys[key] = entry
  end
  return entry
end

local function note(kind, key, name, value)
  local entry = keys[key] or entry_of(key)
  local count = entry.count + 1
  entry.known[name], entry.changed[count], entry.count, entry.kind = value, name, count, kind
end

-- Return the value of a field, or false.
function Pending.get(key, field)
  local entry = keys and keys[key]
  local value = entry and entry.known[field]
  if value ~= nil then return value end
  value = call('HGET', key, field)
  Pending.bytes = Pending.bytes + #(value or '')
  return value
end

-- Return the score of a member, or false.
function Pending.score(key, member)
  local entry = keys and keys[key]
  local value = entry and entry.known[member]
  if value == nil then return call('ZSCORE', key, member) end
  return value
end

-- Return what is known of a key, and the names of which nothing is known.
local function missing_of(key, names)
  if not keys[key] then return entry_of(key).known, names end
  local known, missing = keys[key].known, {}
  for n = 1, #names do
    if known[names[n]] == nil then missing[#missing + 1] = names[n] end
  end
  return known, missing
end

-- Read fields that `get` is going to return.
function Pending.load_fields(key, fields)
  local known, missing = missing_of(key, fields)
  local values = Lists.collect('HMGET', key, missing)
  for n = 1, #missing do
    known[missing[n]], Pending.bytes = values[n], Pending.bytes + #(values[n] or '')
  end
end

-- Read scores that `score` is going to return.
function Pending.load_scores(key, members)
  local known, missing = missing_of(key, members)
  local values = Lists.collect('ZMSCORE', key, missing)
  for n = 1, #missing do known[missing[n]] = values[n] end
end

function Pending.set(key, field, value)
  Pending.bytes = Pending.bytes + #value
  if keys then return note('HSET', key, field, value) end
  call('HSET', key, field, value)
end

function Pending.delete(key, field)
  if keys then return note('HSET', key, field, false) end
  call('HDEL', key, field)
end

function Pending.add(key, score, member)
  if keys then return note('ZADD', key, member, score) end
  call('ZADD', key, score, member)
end

function Pending.remove(key, member)
  if keys then return note('ZADD', key, member, false) end
  call('ZREM', key, member)
end

-- Increment a counter of a hash and return it.
function Pending.increment(key, field, by)
  if not keys then return call('HINCRBY', key, field, by) end
  local value = (Pending.get(key, field) or 0) + by
  note('HSET', key, field, value)
  return value
end

-- Remove the first member of a sorted set and return it, or nil. `ahead`: how many the caller is going to pop.
function Pending.pop(key, ahead)
  if not keys then return call('ZPOPMIN', key)[1] end
  local entry = entry_of(key)
  if not entry.popped then
    Pending.send(key)
    entry.popped, entry.known = call('ZPOPMIN', key, ahead), {}
    entry.popped.at, entry.popped.ahead = 1, ahead
    for n = 1, #entry.popped do entry.gone[#entry.gone + 1] = entry.popped[n] end
  end
  local list, known = entry.popped, entry.known
  while list[list.at] and known[list[list.at]] ~= nil do list.at = list.at + 2 end
  if not list[list.at] and #list == 2 * list.ahead then
    entry.popped = false
    return Pending.pop(key, ahead)
  end
  local first, score, is_added = list[list.at], tonumber(list[list.at + 1]), false
  for n = 1, entry.count do
    local member = entry.changed[n]
    local other = known[member]
    if other and (not first or other + 0 < score or (other + 0 == score and Lists.precedes(member, first))) then
      first, score, is_added = member, other + 0, true
    end
  end
  if is_added then
    note('ZADD', key, first, false)
  elseif first then
    list.at = list.at + 2
  end
  entry.last = first
  return first
end

-- Return the members of a sorted set that were popped ahead.
function Pending.popped(key)
  local members, list = {}, keys[key] and keys[key].popped or {}
  for n = list.at or 1, #list, 2 do members[#members + 1] = list[n] end
  return members
end

-- Send the noted commands of a key.
function Pending.send(key)
  local entry = keys and keys[key]
  if not entry or not (entry.kind or entry.popped) then return end
  local words, size, gone, known, list = {}, 0, {}, entry.known, entry.popped
  local is_hash = entry.kind == 'HSET'
  for n = 1, entry.count do
    local name = entry.changed[n]
    local value = known[name]
    if not value then
      gone[#gone + 1] = name
    else
      if is_hash then words[size + 1], words[size + 2] = name, value else words[size + 1], words[size + 2] = value, name end
      size = size + 2
    end
  end
  if list then
    for n = list.at, #list, 2 do
      if known[list[n]] == nil then
        words[size + 1], words[size + 2] = list[n + 1], list[n]
        size = size + 2
      end
    end
  end
  entry.changed, entry.count, entry.popped = {}, 0, false
  Lists.run(is_hash and 'HDEL' or 'ZREM', key, gone)
  Lists.run(is_hash and 'HSET' or 'ZADD', key, words)
end

-- True if a member of a sorted set that begins with this text was changed.
function Pending.touches(key, beginning)
  local entry = keys and keys[key]
  for n = 1, entry and entry.count or 0 do
    if string.sub(entry.changed[n], 1, #beginning) == beginning then return true end
  end
  return false
end

-- Return the popped members after an error, except the last one, whose task may be damaged.
local function unpop()
  for key, entry in pairs(keys) do
    local words = {}
    for n = 1, #entry.gone, 2 do
      if entry.gone[n] ~= entry.last then words[#words + 1], words[#words + 2] = entry.gone[n + 1], entry.gone[n] end
    end
    Lists.run('ZADD', key, words)
  end
end

local function send_all()
  for key in pairs(keys) do Pending.send(key) end
end

-- Run a function with noted writes, and send them; return its results. After an error nothing is sent.
function Pending.run(act, ...)
  if keys then return act(...) end
  keys = {}
  local is_done, first, second, third = pcall(act, ...)
  local is_sent, why = pcall(is_done and send_all or unpop)
  keys = nil
  if not is_done then error(first, 0) end
  if not is_sent then error(why, 0) end
  return first, second, third
end

return Pending
