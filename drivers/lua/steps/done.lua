-- The end of a method that has changed something: store its reply with the number of the call. A call that is
-- repeated with this number gets the stored reply as `replayed`.
-- in: nothing
--#include flush
if not last then
--#slow
  store_slot()
--#fast
end
call('HSET', M, ARGV[3], ARGV[4] .. ':' .. RESULT, COUNTED)
