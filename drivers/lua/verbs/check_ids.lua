-- List the ids of tasks by HSCAN: each task that exists during the whole scan, some of them twice.
-- ARGV  3 the cursor ('0': the beginning)
-- reply  {the next cursor, the ids in one string, the problems: fields of ':tasks' that are not ids}
local some = redis.pcall('HSCAN', M .. ':tasks', ARGV[3], 'COUNT', 1000, 'NOVALUES')
local step = 1
if some.err then  -- Servers before Redis 7.4 and Valkey 8 have no NOVALUES.
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
