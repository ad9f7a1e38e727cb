-- List the places of buried tasks, in their order.
-- ARGV  6 the place after which to begin ('': the first), 7 how many at most, a bounded number
-- answers  the places
--#include begin
--#include flush
return call('ZRANGEBYLEX', M .. ':buried', ARGV[6] == '' and '-' or '(' .. ARGV[6], '+', 'LIMIT', 0, ARGV[7])
