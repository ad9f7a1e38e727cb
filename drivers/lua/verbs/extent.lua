-- Count the tasks, and say which ids they may have.
-- KEYS[1]  the tube's meta hash
-- answers  {how many, the lowest id that may be there, the next id}; nil: there is no such tube
local M = KEYS[1]
local meta = redis.call('HMGET', M, 'oldest', 'next')
if not meta[2] then return nil end
local lowest = tonumber(meta[1] or 0)
-- Ready tasks that come by their ids alone stand in a list, in that order.
local listed = redis.call('TYPE', M .. ':ready').ok == 'list'
local others = redis.call('EXISTS', M .. ':back', M .. ':buried', M .. ':due')
if listed and others == 0 and redis.call('ZCARD', M .. ':taken') <= 1000 then
  lowest = tonumber(redis.call('LINDEX', M .. ':ready', 0))
  for _, id in ipairs(redis.call('ZRANGE', M .. ':taken', 0, -1)) do lowest = math.min(lowest, tonumber(id)) end
end
return { redis.call('HLEN', M .. ':tasks'), lowest, tonumber(meta[2]) }
