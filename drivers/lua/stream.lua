-- What is known of a stream, `S`: who takes batches in its name is the last one that has opened it.
local S = M .. ':stream:' .. ARGV[6]
if call('HGET', S, 'epoch') ~= ARGV[7] then
--#include flush
  return redis.error_reply('FENCED somebody else goes on with this stream')
end
call('PEXPIRE', S, IDLE)
