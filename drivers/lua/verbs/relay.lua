-- Move tasks that are unchanged since a caller read them to another tube of the server: put them there, remove them
-- here.
-- ARGV  6 the number of tasks, then four words of each as for evict; then the meta hash of the other tube, ARGV 1 to 5
--       and 9 of `put_keyed` for that tube, and nine words of each task as for `put_keyed`
-- reply  as for evict; the error THERE with the error of `put_keyed`, or FULL if the other tube is full
--
-- `put_all` is the put script as a function (see `relaying` in assembly.py). This script decides about each task before
-- it calls `put_all`; other calls cannot come between the put and the removal.
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
  local put_reply = put_all({ ARGV[last + 1] }, words)
  if not put_reply then return 'FULL' end
  if put_reply.err then
    return (string.gsub(put_reply.err, '^(DUPLICATE %d+) (%d+)', function(found, n) return found .. ' ' .. places[n + 1] end))
  end
  -- Delete the kept reply of the put: if the call is sent again, this script returns its own.
  call('HDEL', ARGV[last + 1], words[3])
  return nil
end
--#include verbs/evict
