-- What is known of a stream, `S`: who takes batches in its name is the last one that has opened it.
local S = M .. ':stream:' .. ARGV[6]
if call('HGET', S, 'epoch') ~= ARGV[7] then
--#include flush
  return redis.error_reply('FENCED somebody else goes on with this stream')
end
call('PEXPIRE', S, IDLE)
-- A chunk as it is written down: ids, ':', attempts; those once if they are the same for all.
local function written(ids, attempts)
  local by = attempts[1] or ''
  for n = 2, #attempts do
    if attempts[n] ~= by then
      by = table.concat(attempts, ' ')
      break
    end
  end
  return table.concat(ids, ' ') .. ':' .. by
end
