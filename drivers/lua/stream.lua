-- What is known of a stream, `S`: who takes batches in its name is the last one that has opened it.
local S = M .. ':stream:' .. ARGV[6]
if call('HGET', S, 'epoch') ~= ARGV[7] then
--#include flush
  return redis.error_reply('FENCED another reader continues this stream')
end
call('PEXPIRE', S, IDLE)
-- Numbers in one string; once if they are the same for all.
local function joined(numbers)
  for n = 2, #numbers do
    if numbers[n] ~= numbers[1] then return table.concat(numbers, ' ') end
  end
  return numbers[1] or ''
end

-- A chunk as it is written down: ids, ':', attempts, ':', the numbers of the takes.
local function written(ids, attempts, takes)
  return table.concat(ids, ' ') .. ':' .. joined(attempts) .. ':' .. joined(takes)
end
