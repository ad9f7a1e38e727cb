-- Move tasks that are as a caller has seen them to another tube of the server: they are put there, and removed here.
-- ARGV  6 how many, then of each four words as for evict; then the meta hash of the other tube, ARGV 1 to 5 and 9 of
--       `put_keyed` for that tube, and nine words of each task as for `put_keyed`
-- answers  as evict; the error THERE says what `put_keyed` says: FULL, that there is no room
--
-- `put_all` is that script as a function. Which tasks it gets is known before, and nothing happens between both.
local function put_there(done, last)
  local words, count, places = {}, 0, {}
  for n = 1, 5 do words[n] = ARGV[last + 1 + n] end
  for n = 1, #done do
    if done[n] == '1' then
      for k = 1, 9 do words[11 + 9 * count + k] = ARGV[last + 7 + 9 * (n - 1) + k] end
      count = count + 1
      places[count] = n - 1
    end
  end
  if count == 0 then return nil end
  words[6], words[7], words[8], words[9], words[10], words[11] = '' .. count, '', '' .. 9 * count, ARGV[last + 7], '', ''
  local told = put_all({ ARGV[last + 1] }, words)
  if not told then return 'FULL' end
  if told.err then
    return (string.gsub(told.err, '^(DUPLICATE %d+) (%d+)', function(found, n) return found .. ' ' .. places[n + 1] end))
  end
  -- A call that comes again gets the answer of this script.
  call('HDEL', ARGV[last + 1], words[3])
  return nil
end
--#include verbs/evict
