-- List the ids of tasks, as HSCAN finds them: each that is there all the time, perhaps twice.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 where to go on ('0': the beginning), 2 about how many
-- answers  {where to go on, ids in one string}
local key = KEYS[1] .. ':tasks'
local found = redis.pcall('HSCAN', key, ARGV[1], 'COUNT', ARGV[2], 'NOVALUES')
if found.err then  -- Servers before Redis 7.4 and Valkey 8 answer with the tasks.
  found = redis.call('HSCAN', key, ARGV[1], 'COUNT', ARGV[2])
  local ids = {}
  for n = 1, #found[2], 2 do ids[#ids + 1] = found[2][n] end
  found[2] = ids
end
return { found[1], table.concat(found[2], ' ') }
