-- Find the ids of tasks, as HSCAN does: each that is there all the time, perhaps twice.
-- ARGV  3 where to go on ('0': the beginning)
-- answers  {where to go on, the ids in one string, what is wrong: names in ':tasks' that are no ids}
local some = redis.pcall('HSCAN', M .. ':tasks', ARGV[3], 'COUNT', 1000, 'NOVALUES')
local step = 1
if some.err then  -- Servers before Redis 7.4 and Valkey 8 answer with the tasks.
  some = call('HSCAN', M .. ':tasks', ARGV[3], 'COUNT', 1000)
  step = 2
end
local ids = {}
for n = 1, #some[2], step do
  local name = some[2][n]
  if id_of(name) then
    ids[#ids + 1] = name
  elseif note('unreadable', name) then
    call('HSET', M .. ':broken', name, call('HGET', M .. ':tasks', name))
    call('HDEL', M .. ':tasks', name)
  end
end
return { some[1], table.concat(ids, ' '), found }
