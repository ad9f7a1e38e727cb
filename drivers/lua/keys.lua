-- Unique keys, as in keys.py. The hash ':keys' maps the key of each living task to its id. The hash ':known' has the keys
-- that are remembered after their task is gone. 18 bits of a key's SHA-1 choose its field. A field is a list of records of
-- 21 bytes, sorted by expiry: the moment at which it expires (7), the next bits of the SHA-1 (8), and the id of the task
-- (6).
local Call = require 'call'
local Lists = require 'lists'
local Pending = require 'pending'

local call = redis.call
local pack = struct.pack
local unpack_struct = struct.unpack
local sub = string.sub
local find = string.find

local Keys = {}
local SIZE = 21
-- The places of the keys that were loaded last.
local places = {}

-- Return the position of the first record of a field that expires after `moment`.
local function offset_after(records, moment)
  if records == '' or unpack_struct('>I7', records) > moment then return 1 end
  if unpack_struct('>I7', records, #records - SIZE + 1) <= moment then return #records + 1 end
  return 1 + SIZE * Lists.search(0, #records / SIZE, function(n)
    return unpack_struct('>I7', records, SIZE * n + 1) <= moment
  end)
end

-- Return the place of a key: its field, and the part of its SHA-1 in a record.
local function place_of(key)
  if places[key] then return places[key] end
  local digest = redis.sha1hex(key)
  return {
    field = tonumber(sub(digest, 1, 5), 16) % 262144,
    hash = pack('>I4I4', tonumber(sub(digest, 6, 13), 16), tonumber(sub(digest, 14, 21), 16)),
  }
end

-- Read what is known of many keys.
function Keys.load(keys)
  local fields = {}
  places = {}
  for n = 1, #keys do
    local place = place_of(keys[n])
    fields[n], places[keys[n]] = place.field, place
  end
  Pending.load_fields(Call.keys.known, fields)
end

-- Return the field of a key, its records, the part of the SHA-1 in a record, and the position of the key's record or
-- nil.
local function find_known(key)
  local place = place_of(key)
  local field, hash = place.field, place.hash
  local records = Pending.get(Call.keys.known, field) or ''
  local at = find(records, hash, 1, true)
  while at and at % SIZE ~= 8 do at = find(records, hash, at + 1, true) end
  return field, records, hash, at and at - 7
end

-- Return the id of the task with a key, and true if that task lives. nil: the key is free.
function Keys.find(key)
  local id = Pending.get(Call.keys.keys, key)
  if id then return id, true end
  local _, records, _, at = find_known(key)
  if at and unpack_struct('>I7', records, at) > Call.now then
    return string.format('%.0f', unpack_struct('>I6', records, at + 15)), false
  end
  return nil
end

-- Replace the record of a key (`id` nil: remove it), and remove the expired ones of its field.
local function write_known(key, id, ends)
  local field, records, hash, at = find_known(key)
  local left = at and sub(records, 1, at - 1) .. sub(records, at + SIZE) or records
  if id then
    at = offset_after(left, ends)
    left = sub(left, 1, at - 1) .. pack('>I7', ends) .. hash .. pack('>I6', id) .. sub(left, at)
  end
  left = sub(left, offset_after(left, Call.now))
  if left ~= '' then
    Pending.set(Call.keys.known, field, left)
  elseif records ~= '' then
    Pending.delete(Call.keys.known, field)
  end
end

-- Give a key to a new task. `known`: the key is remembered.
function Keys.add(key, id, known)
  if known then write_known(key) end
  Pending.set(Call.keys.keys, key, id)
end

-- Forget the key of a task that has ended, or remember it for key_ttl.
function Keys.leave(task)
  Pending.delete(Call.keys.keys, task.key)
  if task.key_ttl then write_known(task.key, task.id, Call.now + task.key_ttl) end
end

-- ARGV  6 the key
-- reply  '1' if the key was remembered, else '0', also if its task is still in the tube
function Keys.forget_key(args)
  local id, lives = Keys.find(args[6])
  if lives or not id then return '0' end
  write_known(args[6])
  return '1', '1'
end

-- Remove expired known keys of up to 1,500 fields, which takes about a millisecond, while a quarter of the fields have
-- some. The clock chooses the first cursor: HSCAN accepts a cursor that it did not return, and may then miss fields. The first record of a field
-- expires first. Any later write of a field also removes its expired records.
function Keys.expire()
  local known, now = Call.keys.known, Call.now
  local cursor = string.format('%.0f', now % 1048576)
  for _ = 1, 15 do
    local some = call('HSCAN', known, cursor, 'COUNT', 100)
    local fields, old, changed = some[2], {}, {}
    for n = 1, #fields, 2 do
      local records = fields[n + 1]
      local at = offset_after(records, now)
      if at > #records then
        old[#old + 1] = fields[n]
      elseif at > 1 then
        changed[#changed + 1], changed[#changed + 2] = fields[n], sub(records, at)
      end
    end
    if #old > 0 then call('HDEL', known, unpack(old)) end
    if #changed > 0 then call('HSET', known, unpack(changed)) end
    cursor = some[1]
    if cursor == '0' or 8 * #old + 4 * #changed < #fields then break end
  end
end

return Keys
