-- Release all taken tasks of all sessions: some per call, in the order of their ids.
-- reply  nothing; AGAIN while more tasks are taken
--#include begin
if replayed then return end
call('HDEL', M, '')
local all = call('ZCARD', M .. ':taken')
local ids = call('ZRANGE', M .. ':taken', 0, SOME - 1)
release_for_all(ids)
if all > #ids then
--#include flush
  return redis.error_reply('AGAIN call again')
end
--#done ''
return
