-- Take tasks for a stream, and write down which. Their ttr does not run: the lease of the session stands for it.
-- ARGV  6 the stream, 7 its epoch, 8 the batch, 9 the number of the chunk in it, 10 how many tasks at most; 0: none but those
--       that were taken before
-- answers  what is written down: ids, ':', attempts; nil if there was nothing to take. The same again for the same chunk
--#include begin
--#include stream
local field = ARGV[8] .. '.' .. ARGV[9]
local chunk = call('HGET', S, field)
if chunk then
--#include flush
  return chunk
end
local limit, leased = tonumber(ARGV[10]), true
if limit == 0 then
--#include flush
  return false
end
--#include take_some
for n = 1, #tasks do ids[n], attempts[n] = tasks[n].id, tasks[n].attempts end
if #ids == 0 then
--#include flush
  return false
end
chunk = written(ids, attempts)
-- The numbers of batches may leap: nobody is to look for those that never were.
local known = call('HMGET', S, 'first', 'last')
if known[1] - known[2] > 0 then call('HSET', S, 'first', ARGV[8]) end
call('HSET', S, field, chunk, ARGV[8], ARGV[9] + 1, 'last', ARGV[8])
--#done chunk
return chunk
