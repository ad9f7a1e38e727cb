-- Release all taken tasks, whoever has them, in the order of the ids.
-- answers  nothing; AGAIN while some are left
--#include begin
if replayed then return end
call('HDEL', M, '')
local ids = call('ZRANGE', M .. ':taken', 0, -1)
table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
for n = 1, math.min(#ids, 1000) do
  local task, due = find(ids[n])
--#move release t
end
if #ids > 1000 then
  flush()
  return redis.error_reply('AGAIN there is more to do first')
end
return finish(nil, '')
