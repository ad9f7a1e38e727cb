-- Filters of selections.

-- Return the kind of a stored reason, and the reason; `words`: as task.lua describes it.
local function kind_of(words)
  if not words then return 'none' end
  local length = tonumber(sub(words, 1, 2), 16) or 0
  local reason = sub(words, 3 + length)
  return length > 0 and sub(words, 3, 2 + length) or reason, reason
end

-- Return a function that encodes a task for the reply, or returns nil if the filter excludes the task. `packed`: '':
-- every task, as `encode_task` encodes it. Else the filter, as strings in MessagePack: 1 the id from which on tasks
-- are excluded, 2 the least age in microseconds, 3 the least number of attempts, 4 '=' and the lane, 5 the key,
-- 6 the reason or its kind, 7 a text in the data (each '': any), 8 '1': the reply has only the facts and the moment of
-- the put of each task. `record`: of a kept done task, the reply for it. Also return how much a byte of a task counts:
-- to search it for a text may take several times as long as to read it.
local function filter_of(packed)
  if packed == '' then return encode_task, 1 end
  local bound, age, least, named, key, wanted, part, bare = unpack(cmsgpack.unpack(packed))
  bound, age, least = tonumber(bound), tonumber(age), tonumber(least)
  return function(task, record)
    if bound and tonumber(task.id) >= bound then return nil end
    if age and now - unpack_struct('>I7', task.value, 2) < age then return nil end
    if least and task.attempts < least then return nil end
    if named ~= '' and '=' .. (task.lane or 'nil') ~= named then return nil end
    if key ~= '' and task.key ~= key then return nil end
    if wanted ~= '' then
      local kind, reason = kind_of(task.reason)
      if kind ~= wanted and reason ~= wanted then return nil end
    end
    if part ~= '' and not string.find(task.value, part, task.body, true) then return nil end
    if bare == '' then return record or encode_task(task) end
    return encode_facts(task) .. sub(task.value, 1, 8)
  end, part == '' and 1 or 8
end
