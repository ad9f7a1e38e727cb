-- How a verb ends that did something: a call that comes again with the same number gets ANSWER, as `replayed`.
--#include flush
if not last then
--#slow
  note_slot()
--#fast
end
call('HSET', M, ARGV[3], ARGV[4] .. ':' .. ANSWER, COUNTED)
