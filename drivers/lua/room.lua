-- The capacity of a tube and of its lanes.
local Call = require 'call'
local Lanes = require 'lanes'
local Waiting = require 'waiting'

local call = redis.call

local Room = {}

-- Return a table that counts new tasks by their lanes, in the order of the put: `names`, `more` (the number of new tasks
-- of each, for the check of room) and `new` (for the counters).
function Room.lanes()
  local lanes = { names = {}, more = {}, new = {} }
  function lanes.grow(name, by)
    if not lanes.more[name] then lanes.names[#lanes.names + 1], lanes.more[name] = name, 0 end
    lanes.more[name] = lanes.more[name] + by
  end
  function lanes.add(name, count)
    lanes.grow(name, count)
    lanes.new[name] = (lanes.new[name] or 0) + count
  end
  return lanes
end

-- Return true if the tube has room for `needed` new tasks; false if it is full, and an error reply if one of its lanes is
-- full. The error has the name of the lane in hexadecimal digits, its number of new tasks, and its capacity. `callers`:
-- the number of callers in `process` that wait if there is no room ('' or nil: they do not wait).
function Room.check(needed, callers, process, lanes)
  local waits = (callers or '') ~= ''
  local capacity = Call.plan.capacity
  if capacity > 0 and needed > 0 and call('HLEN', Call.keys.tasks) + needed > capacity then
    if waits then Waiting.wait_for_room(needed, callers, process) end
    return false
  end
  for _, name in ipairs(lanes and lanes.names or {}) do
    local more = lanes.more[name]
    local most = more > 0 and Lanes.capacity_of(name) or 0
    if most > 0 and (call('HGET', Call.keys.fill, name) or 0) + more > most then
      if waits then Waiting.wait_for_room(needed, callers, process, name) end
      local digits = string.gsub(name, '.', function(char) return string.format('%02x', string.byte(char)) end)
      return redis.error_reply('LANEFULL x' .. digits .. ' ' .. more .. ' ' .. most)
    end
  end
  return true
end

return Room
