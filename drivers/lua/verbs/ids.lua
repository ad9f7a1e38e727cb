-- The ids of tasks, as HSCAN finds them: each that is there all the time, perhaps twice.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 where to go on ('0': the beginning), 2 about how many
-- answers  {where to go on, ids in one string}
local found = redis.call('HSCAN', KEYS[1] .. ':tasks', ARGV[1], 'COUNT', ARGV[2])
local ids = {}
for n = 1, #found[2], 2 do ids[#ids + 1] = found[2][n] end
return { found[1], table.concat(ids, ' ') }
