-- Unique keys. ':keys' has for each key the id of its living task; or, of one that is gone, the id and until when the key
-- is remembered, which ':seen' has in order.

-- What the task of a key is: its id, and whether it lives; nil: there is none.
local function find_key(key)
  local found = call('HGET', M .. ':keys', key)
  if not found then return nil end
  local id, ends = string.match(found, '^(%d+) ?(%d*)$')
  if ends == '' then return id, true end
  if tonumber(ends) > now then return id, false end
  return nil
end

-- The task has gone.
local function leave_key(key, id, key_ttl)
  if call('HGET', M .. ':keys', key) ~= tostring(id) then return end
  if key_ttl then
    local ends = now + key_ttl
    call('HSET', M .. ':keys', key, string.format('%s %.0f', id, ends))
    call('ZADD', M .. ':seen', ends, key)
  else
    call('HDEL', M .. ':keys', key)
  end
end

-- What is remembered too long is forgotten, some at a time.
local function forget_keys(limit)
  --#include forget_keys
end

-- A task has this key now, perhaps after another one that it replaces.
local function enter_key(key, id, replaces)
  call('HSET', M .. ':keys', key, id)
  if replaces then
--#slow
    local task = find(id)
    task.replaces = true
    write(task)
--#fast
  end
  forget_keys(10)
end
