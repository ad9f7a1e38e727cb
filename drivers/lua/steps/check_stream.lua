-- Refuse the call unless the caller is the last reader that has opened its stream, whose key is `stream`.
-- out: stream, joined, encode_chunk
local stream = M .. ':stream:' .. ARGV[6]
if call('HGET', stream, 'epoch') ~= ARGV[7] then
--#include flush
  return redis.error_reply('FENCED another reader continues this stream')
end
call('PEXPIRE', stream, IDLE)
-- Join numbers into one string; a single number if all are equal.
local function joined(numbers)
  for n = 2, #numbers do
    if numbers[n] ~= numbers[1] then return table.concat(numbers, ' ') end
  end
  return numbers[1] or ''
end

-- Return the stored form of a chunk: ids, ':', attempts, ':', numbers of the takes.
local function encode_chunk(ids, attempts, takes)
  return table.concat(ids, ' ') .. ':' .. joined(attempts) .. ':' .. joined(takes)
end
