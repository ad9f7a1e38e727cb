-- Return false if the tube has no room for `needed` new tasks. `capacity`: the maximum number of tasks (nil: unlimited);
-- `callers`: the number of callers in `process` that wait if there is no room ('': they do not wait).
-- in: needed, capacity, callers, process, lanes?, more?
if capacity and needed > 0 and call('HLEN', M .. ':tasks') + needed > capacity then
  if callers ~= '' then
--#slow
    wait_for_room(needed, callers, process)
--#fast
  end
--#include flush
  return false
end
--#if LANE_ROOM
-- Refuse the put if one of the `lanes` has no room. `lanes` are in the order of the put; `more` maps each to its
-- number of new tasks. The error has the name of the full lane in hexadecimal digits, its number of new tasks, and
-- its capacity.
for n = 1, #lanes do
  local name = lanes[n]
  local most = more[name] > 0 and capacity_of(name) or 0
  if most > 0 and (call('HGET', M .. ':fill', name) or 0) + more[name] > most then
    if callers ~= '' then
--#slow
      wait_for_room(needed, callers, process, name)
--#fast
    end
--#include flush
    local digits = string.gsub(name, '.', function(char) return string.format('%02x', byte(char)) end)
    return redis.error_reply('LANEFULL x' .. digits .. ' ' .. more[name] .. ' ' .. most)
  end
end
--#end
