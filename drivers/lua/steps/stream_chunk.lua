-- Read the chunk in `field`. Leaves `named`, the ids of its tasks; `attempts`; and `expected`, the takes by which the
-- stream holds them.
-- in: stream, field
-- out: named, attempts, expected, chunk
local chunk = call('HGET', stream, field)
if not chunk then
--#include flush
  return false
end
local ids, by_attempts, by_takes = string.match(chunk, '(.*):(.*):(.*)')
local named = {}
for id in string.gmatch(ids, '%d+') do named[#named + 1] = id end
-- A single number applies to all tasks.
local function numbers_of(words)
  local numbers, count = {}, 0
  for number in string.gmatch(words, '%d+') do
    count = count + 1
    numbers[count] = number
  end
  for n = 2, count == 1 and #named or 0 do numbers[n] = words end
  return numbers
end
local attempts, expected = numbers_of(by_attempts), numbers_of(by_takes)
