-- Release all taken tasks, whoever has them: some at a time, in the order of their ids.
-- answers  nothing; AGAIN while some are left
--#include begin
if replayed then return end
call('HDEL', M, '')
local all = call('ZCARD', M .. ':taken')
local ids = call('ZRANGE', M .. ':taken', 0, SOME - 1)
release_each(ids, 'release')
if all > #ids then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
--#done ''
return
