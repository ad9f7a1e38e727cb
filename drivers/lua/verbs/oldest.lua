-- Find the ready task with the smallest id.
-- ARGV  6 the id at which to begin ('': the smallest possible id)
-- reply  nil if no task is ready; the age of the task in microseconds, as a string; or the id at which to continue
--#unless AGE
--#include begin
--#include flush
--#end
local size = 0
local function age_of(id)
  local value = call('HGET', M .. ':tasks', id)
  size = size + (value and #value or 0)
  if value and byte(value, 1) % 4 == 0 and not call('ZSCORE', M .. ':taken', id) then
    return string.format('%.0f', math.max(now - unpack_struct('>I7', value, 2), 0))
  end
  return not value
end
if call('HLEN', M .. ':tasks') <= 2000 then
  local ids, from = call('HKEYS', M .. ':tasks'), tonumber(ARGV[6]) or 0
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, #ids do
    if tonumber(ids[n]) >= from then
      if size >= BYTES then return tonumber(ids[n]) end
      local age = age_of(ids[n])
      if age then return age end
    end
  end
  return false
end
-- Every task, present or future, has an id of at least `known`.
local known = tonumber(call('HGET', M, 'oldest') or 0)
local first = ARGV[6] == '' and known or tonumber(ARGV[6])
local last = math.min(first + 5000, tonumber(META.next)) - 1
local gone, age = first, nil
for id = first, last do
  if size >= BYTES then
    last = id - 1
    break
  end
  age = age_of(id)
  if age == true then
    if gone == id then gone = id + 1 end
  elseif age then
    break
  end
end
-- A read-only client continues without storing this.
local may = redis.acl_check_cmd
if first == known and gone > known and (not may or may('HSET', M, '', '')) then redis.pcall('HSET', M, 'oldest', gone) end
if age and age ~= true then return age end
return last + 1 < tonumber(META.next) and last + 1
