-- The tasks of a batch are done, those of its last chunk; so is one whose lease was over, if nobody else has taken it since,
-- and it was not left out when the batch was read.
-- ARGV  6 the stream, 7 its epoch, 8 the batch
-- answers  how many chunks are left, ' ', how many tasks were done
--#include begin
if replayed then return replayed end
--#include stream
local left, count = (call('HGET', S, ARGV[8]) or 0) - 1, 0
local field = ARGV[8] .. '.' .. left
if left <= 0 then
  call('HDEL', S, ARGV[8], ARGV[8] .. '.by')
  call('HSET', S, 'first', ARGV[8] + 1)
else
  call('HSET', S, ARGV[8], left)
end
if left >= 0 then
--#include stream_chunk
--#include ack_some
  local skipped = M .. ':skipped:' .. ARGV[6]
  for n = 1, #named do
    if done[n] == '1' then
      count = count + 1
    elseif call('SREM', skipped, named[n] .. '.' .. meant[n]) == 0 then
      local task, due = find(named[n])
      if task and task.state == 'r' and task.attempts == meant[n] + 0 then
--#move delete r
        count = count + 1
      end
    end
  end
  call('HDEL', S, field)
end
local answer = string.format('%d %d', math.max(left, 0), count)
--#done answer
return answer
