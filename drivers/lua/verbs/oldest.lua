-- The ready task with the smallest id.
-- ARGV  6 the id from which to look on ('': from the smallest one that may live)
-- answers  nothing if there is none; the age of the task in microseconds, as a string; the id from which to look on
--#include begin
--#include flush
local function age_of(id)
  local value = call('HGET', M .. ':tasks', id)
  if value and byte(value, 1) % 4 == 0 and not call('ZSCORE', M .. ':taken', id) then
    return string.format('%.0f', now - unpack_struct('>I7', value, 2))
  end
  return not value
end
if call('HLEN', M .. ':tasks') <= 2000 then
  local ids = call('HKEYS', M .. ':tasks')
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  for n = 1, #ids do
    local age = age_of(ids[n])
    if age then return age end
  end
  return false
end
-- Below `known` nothing lives, and nothing ever will.
local known = tonumber(call('HGET', M, 'oldest') or 0)
local first = ARGV[6] == '' and known or tonumber(ARGV[6])
local last = math.min(first + 5000, tonumber(META.next)) - 1
local gone, age = first, nil
for id = first, last do
  age = age_of(id)
  if age == true then
    if gone == id then gone = id + 1 end
  elseif age then
    break
  end
end
if first == known and gone > known then
  call('HDEL', M, '')
  call('HSET', M, 'oldest', gone)
end
if age and age ~= true then return age end
return last + 1 < tonumber(META.next) and last + 1
