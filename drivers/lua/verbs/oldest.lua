-- The ready task with the smallest id.
-- ARGV  6 the id from which to look on ('': from the smallest one that may live)
-- answers  nothing if there is none; the age of the task in microseconds, as a string; the id from which to look on
--#include begin
--#include flush
local total = call('HLEN', M .. ':tasks')
local function age_of(id, value)
  if byte(value, 1) % 4 == 0 and not call('ZSCORE', M .. ':taken', id) then
    return string.format('%.0f', now - unpack_struct('>I7', value, 2))
  end
end
if total <= 1000 then
  local best, age
  local all = call('HGETALL', M .. ':tasks')
  for n = 1, #all, 2 do
    local id = tonumber(all[n])
    if not best or id < best then
      local this = age_of(all[n], all[n + 1])
      if this then best, age = id, this end
    end
  end
  return age or false
end
local first = ARGV[6] == '' and tonumber(call('HGET', M, 'oldest') or 0) or tonumber(ARGV[6])
local after, living = tonumber(META.next), false
for id = first, math.min(first + 5000, after) - 1 do
  local value = call('HGET', M .. ':tasks', id)
  if value then
    if not living and ARGV[6] == '' then call('HSET', M, 'oldest', id) end
    living = true
    local age = age_of(id, value)
    if age then return age end
  end
end
if not living then call('HSET', M, 'oldest', math.min(first + 5000, after)) end
if first + 5000 >= after then return false end
return first + 5000
