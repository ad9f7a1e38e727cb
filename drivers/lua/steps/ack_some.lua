-- Ack the tasks `named`, by the takes `expected` (see `find_held`). Leaves `done`: '1' for each task that the session
-- held, else '0'.
-- in: named, expected
-- out: done
local done = {}
--#if PACED
--#include ack_each
--#else
--#if KEEPS
local by_one = true
--#elif LANE
local by_one = listening
--#else
-- Tasks with a key are acked one by one.
local by_one = listening or call('EXISTS', M .. ':keys') == 1
--#end
if by_one then
--#slow
--#include ack_each
--#fast
else
  local ids, first, text_of, lost = named, ARGV[1] * TAKES, {}, false
  local scores = all_of('ZMSCORE', M .. ':taken', named)
  for n = 1, #named do
    local score, by = scores[n], expected[n]
    local text = text_of[by]
    if not text then
      text = (tonumber(by) or -1) >= 0 and string.format('%.0f', first + by) or by
      text_of[by] = text
    end
    -- Equal strings need no conversion to a number.
    if score == text or (score and text == by and find_held(named[n], by)) then
      done[n] = '1'
    else
      done[n], lost = '0', true
    end
  end
  if lost then
    ids = {}
    for n = 1, #named do
      if done[n] == '1' then ids[#ids + 1] = named[n] end
    end
  end
  local undue = {}  --#if TIMED
--#if LANE
  local lanes, keyed, values = {}, {}, all_of('HMGET', M .. ':tasks', ids)
  for n = 1, #ids do
--#include ack_column
  end
--#elif TIMED
  for n = 1, #ids do undue[n] = pack('>I6', ids[n]) end
--#end
--#moves ack t
--#if LANE
  for n = 1, #keyed do
--#slow
    free_key(unpack(keyed[n], 1, 3))
--#fast
  end
--#end
end
--#end
