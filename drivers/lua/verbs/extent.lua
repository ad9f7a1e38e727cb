-- Count the tasks, and return the range of their ids.
-- KEYS[1]  the tube's meta hash
-- reply  {the number of tasks, a lower bound of their ids, the next id}; nil: the tube does not exist
local M = KEYS[1]
local meta = redis.call('HMGET', M, 'oldest', 'next')
if not meta[2] then return nil end
local lowest = tonumber(meta[1] or 0)
-- Ready tasks that are ordered only by id are in a list, in this order.
local listed = redis.call('TYPE', M .. ':ready').ok == 'list'
local others = redis.call('EXISTS', M .. ':back', M .. ':buried', M .. ':due')
if listed and others == 0 and redis.call('ZCARD', M .. ':taken') <= 1000 then
  lowest = tonumber(redis.call('LINDEX', M .. ':ready', 0))
  for _, id in ipairs(redis.call('ZRANGE', M .. ':taken', 0, -1)) do lowest = math.min(lowest, tonumber(id)) end
end
return { redis.call('HLEN', M .. ':tasks'), lowest, tonumber(meta[2]) }
