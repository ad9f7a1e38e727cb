-- Unique keys. The hash ':keys' maps the key of each living task to its id. The hash ':known' has the keys that are
-- remembered after their task is gone. 18 bits of a key's SHA-1 choose its field. A field is a list of records of 21
-- bytes, sorted by expiry: the moment at which it expires (7), the next bits of the SHA-1 (8), and the id of the task
-- (6).

-- Return the position of the first record of a field that expires after `moment`.
local function known_after(records, moment)
  if records == '' or unpack_struct('>I7', records) > moment then return 1 end
  if unpack_struct('>I7', records, #records - 20) <= moment then return #records + 1 end
  local low, high = 0, #records / 21
  while low < high do
    local middle = math.floor((low + high) / 2)
    if unpack_struct('>I7', records, 21 * middle + 1) <= moment then low = middle + 1 else high = middle end
  end
  return 21 * low + 1
end

-- Return the field of a key, its records, the part of the SHA-1 in a record, and the position of the key's record or
-- nil.
local function known_key(key)
  local digest = redis.sha1hex(key)
  local field = tonumber(sub(digest, 1, 5), 16) % 262144
  local hash = pack('>I4I4', tonumber(sub(digest, 6, 13), 16), tonumber(sub(digest, 14, 21), 16))
  local records = call('HGET', M .. ':known', field) or ''
  local at = string.find(records, hash, 1, true)
  while at and at % 21 ~= 8 do at = string.find(records, hash, at + 1, true) end
  return field, records, hash, at and at - 7
end

-- Return the id of the task with a key, and true if that task lives. nil: the key is free.
local function find_key(key)
  local id = call('HGET', M .. ':keys', key)
  if id then return id, true end
  local _, records, _, at = known_key(key)
  if at and unpack_struct('>I7', records, at) > now then return string.format('%.0f', unpack_struct('>I6', records, at + 15)), false end
  return nil
end

-- Replace the record of a key (nil: remove it), and remove the expired ones of its field.
local function write_known(key, id, ends)
  local field, records, hash, at = known_key(key)
  local left = at and sub(records, 1, at - 1) .. sub(records, at + 21) or records
  if id then
    at = known_after(left, ends)
    left = sub(left, 1, at - 1) .. pack('>I7', ends) .. hash .. pack('>I6', id) .. sub(left, at)
  end
  left = sub(left, known_after(left, now))
  if left ~= '' then
    call('HSET', M .. ':known', field, left)
  elseif records ~= '' then
    call('HDEL', M .. ':known', field)
  end
end

-- Forget the key of a task that has ended, or remember it for key_ttl.
local function free_key(key, id, key_ttl)
  if call('HGET', M .. ':keys', key) ~= tostring(id) then return end
  call('HDEL', M .. ':keys', key)
  if key_ttl then write_known(key, id, now + key_ttl) end
end

-- Give a key to a new task. `replaces`: the task has removed another one with this key; `known`: the key is remembered,
-- perhaps since that removal.
local function assign_key(key, id, replaces, known)
  if known then
--#slow
    write_known(key)
--#fast
  end
  call('HSET', M .. ':keys', key, id)
  if replaces then
--#slow
    local task = find(id)
    task.replaces = true
    write(task)
--#fast
  end
end
