-- Filters of selections.

-- True if a buried task has a reason or a kind of reason, as `kind_of` in reasons.py returns it: the text before the
-- first colon, cut after 60 characters. `cut`: the wanted kind has as many, so a longer one counts too.
local function has_reason(reason, wanted, cut)
  if reason == wanted then return true end
  local last = reason and string.match(reason, '^max_attempts: %s*(%S*)')
  if last then return (last == '' and 'max_attempts:' or 'max_attempts: ' .. last) == wanted end
  local kind = reason and string.match(reason, '^%s*([^:]-)%s*:') or reason and string.match(reason, '^%s*([^:]-)%s*$') or ''
  if kind == '' then kind = 'none' end
  return kind == wanted or (cut and sub(kind, 1, #wanted) == wanted)
end

-- Return a function that encodes a task for the reply, or returns nil if the filter excludes the task. `packed`: '':
-- every task, as `encode_task` encodes it. Else the filter, as strings in MessagePack: 1 the id from which on tasks
-- are excluded, 2 the least age in microseconds, 3 the least number of attempts, 4 '=' and the lane, 5 the key,
-- 6 the reason, 7 '1' if the reason has 60 characters, 8 a text in the data (each '': any), 9 '1': the reply has only
-- the facts and the moment of the put of each task. `record`: of a kept done task, the reply for it.
local function filter_of(packed)
  if packed == '' then return encode_task end
  local bound, age, least, named, key, reason, cut, part, bare = unpack(cmsgpack.unpack(packed))
  bound, age, least = tonumber(bound), tonumber(age), tonumber(least)
  return function(task, record)
    if bound and tonumber(task.id) >= bound then return nil end
    if age and now - unpack_struct('>I7', task.value, 2) < age then return nil end
    if least and task.attempts < least then return nil end
    if named ~= '' and '=' .. (task.lane or 'nil') ~= named then return nil end
    if key ~= '' and task.key ~= key then return nil end
    if reason ~= '' and not has_reason(task.reason, reason, cut == '1') then return nil end
    if part ~= '' and not string.find(task.value, part, task.body, true) then return nil end
    if bare == '' then return record or encode_task(task) end
    return encode_facts(task) .. sub(task.value, 1, 8)
  end
end
