-- Ack the tasks of the last chunk of a batch. A task whose lease has expired is removed as well if no other session has
-- taken it since (its attempts are then as before the take) and it was not left out when the batch was read. All
-- earlier batches are done, too: if the server lost their acks and still has batches of them, the first one is acked
-- first.
-- ARGV  6 the stream, 7 its epoch, 8 the batch
-- reply  the minimum number of remaining chunks, ' ', the number of done tasks
--#include begin
if replayed then return replayed end
--#include check_stream
local batch, first = ARGV[8], call('HGET', stream, 'first')
if first and first + 0 < batch + 0 and call('HEXISTS', stream, first) == 1 then batch = first end
local left, count = (call('HGET', stream, batch) or 0) - 1, 0
local field = batch .. '.' .. left
if left <= 0 then
  call('HDEL', stream, batch, batch .. '.by')
  call('HSET', stream, 'first', batch + 1)
else
  call('HSET', stream, batch, left)
end
if left >= 0 then
--#include stream_chunk
--#include ack_some
  local skipped = M .. ':skipped:' .. ARGV[6]
  for n = 1, #named do
    if done[n] == '1' then
      count = count + 1
    elseif call('SREM', skipped, named[n] .. '.' .. expected[n]) == 0 then
      local task = find(named[n])
      if task and task.state == 'r' and task.attempts == attempts[n] - 1 then
--#move delete r
        count = count + 1
      end
    end
  end
  call('HDEL', stream, field)
end
local result = string.format('%d %d', math.max(left, 0) + (batch ~= ARGV[8] and 1 or 0), count)
--#done result
return result
