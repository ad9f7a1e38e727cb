-- List the ids of tasks, as a scan finds them: each that is there all the time, perhaps twice.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 where to go on ('0': the beginning), 2 about how many, 3 where they stand: tasks, taken, due, buried or ended
-- answers  {where to go on, ids in one string}; of buried ones the last 6 bytes of their places
local key, part = KEYS[1] .. ':' .. ARGV[3], ARGV[3]
local found
if part == 'tasks' then
  found = redis.pcall('HSCAN', key, ARGV[1], 'COUNT', ARGV[2], 'NOVALUES')
  if not found.err then return { found[1], table.concat(found[2], ' ') } end
  -- Servers before Redis 7.4 and Valkey 8 answer with the tasks.
  found = redis.call('HSCAN', key, ARGV[1], 'COUNT', ARGV[2])
else
  found = redis.call('ZSCAN', key, ARGV[1], 'COUNT', ARGV[2])
end
local ids = {}
for n = 1, #found[2], 2 do
  local at = found[2][n]
  if part ~= 'taken' and part ~= 'tasks' then at = string.format('%.0f', struct.unpack('>I6', at, #at - 5)) end
  ids[#ids + 1] = at
end
return { found[1], table.concat(ids, ' ') }
