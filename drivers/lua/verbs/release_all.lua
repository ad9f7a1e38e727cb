-- Release all taken tasks of all sessions: some per call, in the order of their ids.
-- reply  nothing; AGAIN while more tasks are taken
--#include begin
if replayed then return end
call('HDEL', M, '')
local all = call('ZCARD', M .. ':taken')
local ids = call('ZRANGE', M .. ':taken', 0, SOME - 1)
local streams = {}
for _, token in ipairs(call('ZRANGE', M .. ':leases', 0, -1)) do
  if is_stream(token) then streams[tonumber(string.match(token, '%d+'))] = true end
end
release_each(ids, 'release', streams)
if all > #ids then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
--#done ''
return
