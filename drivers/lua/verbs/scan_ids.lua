-- List the ids of tasks by a scan: each task that exists during the whole scan, some of them twice.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the cursor ('0': the beginning), 2 about how many ids, 3 the key: tasks, taken, due, buried or ended
-- reply  {the next cursor, ids in one string}; of 'buried' the id in the last 6 bytes of each place
local key, part = KEYS[1] .. ':' .. ARGV[3], ARGV[3]
local found
if part == 'tasks' then
  found = redis.pcall('HSCAN', key, ARGV[1], 'COUNT', ARGV[2], 'NOVALUES')
  if not found.err then return { found[1], table.concat(found[2], ' ') } end
  -- Servers before Redis 7.4 and Valkey 8 have no NOVALUES.
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
