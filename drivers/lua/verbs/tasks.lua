-- Look at tasks, in the order of their ids.
-- ARGV  6 the id from which to look, 7 how many at most, a bounded number, 8 their state, 9 '=' and their lane; '': any
-- answers  {the id from which to look on; 0: that was all}, and what `shown` says of each
--#include begin
--#include flush
local first, most = tonumber(ARGV[6]), tonumber(ARGV[7])
local state, lane = ARGV[8] or '', ARGV[9] or ''
local found, size = { 0 }, 0
-- Whether there is room for more in one answer.
local function show(id)
  local task = find(id)
  if task then
    size = size + #task.value
    if (state == '' or task.state == state) and (lane == '' or '=' .. (task.lane or 'nil') == lane) then
      found[#found + 1] = shown(task)
    end
  end
  return #found <= most and size < BYTES
end
if call('HLEN', M .. ':tasks') <= 2000 then
  local ids = {}
  for _, id in ipairs(call('HKEYS', M .. ':tasks')) do
    if tonumber(id) >= first then ids[#ids + 1] = tonumber(id) end
  end
  table.sort(ids)
  for n = 1, #ids do
    if not show(ids[n]) then
      found[1] = ids[n] + 1
      break
    end
  end
  return found
end
-- Below `oldest` nothing lives.
first = math.max(first, tonumber(call('HGET', M, 'oldest') or 0))
local last = math.min(first + 5000, tonumber(META.next)) - 1
if last + 1 < tonumber(META.next) then found[1] = last + 1 end
for id = first, last do
  if not show(id) then
    found[1] = id + 1
    break
  end
end
return found
