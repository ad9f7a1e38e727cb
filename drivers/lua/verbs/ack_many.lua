-- Held tasks are done.
-- ARGV  6… of each its id, and the attempts by which the caller has it ('': by whichever)
-- answers  for each '1' if it was done, '0' if it was not held
--#include begin
if replayed then return replayed end
local done = {}
--#if LANE
--#include ack_each
--#else
-- Who has a key leaves it, one by one.
if listening or call('EXISTS', M .. ':keys') == 1 then
--#slow
--#include ack_each
--#fast
else
  local named, ids, tasks, first, text_of = {}, {}, {}, ARGV[1] * TURNS, {}
  for n = 6, #ARGV, 2 do named[n / 2 - 2] = ARGV[n] end
  local scores = all_of('ZMSCORE', M .. ':taken', named)
  for n = 1, #named do
    local score, meant = scores[n], ARGV[2 * n + 5]
    local text = text_of[meant]
    if not text then
      text = meant ~= '' and string.format('%.0f', first + meant) or meant
      text_of[meant] = text
    end
    -- As text it is compared at once.
    if score == text or (score and meant == '' and score - first >= 0 and score - first < TURNS) then
      done[n] = '1'
--#if PLAIN
      ids[#ids + 1] = named[n]
--#else
      tasks[#tasks + 1] = { id = named[n], state = 't' }
--#end
    else
      done[n] = '0'
    end
  end
--#moves ack t
end
--#end
local answer = table.concat(done)
--#done answer
return answer
