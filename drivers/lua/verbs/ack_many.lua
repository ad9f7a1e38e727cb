-- Held tasks are done.
-- ARGV  6… of each its id, and the attempts by which the caller has it ('': by whichever)
-- answers  for each '1' if it was done, '0' if it was not held
--#include begin
if replayed then return replayed end
local done = {}
--#if LANE
for n = 6, #ARGV, 2 do
  local task, due = held_one(ARGV[n], ARGV[n + 1])
  done[#done + 1] = task and '1' or '0'
  if task then
--#move ack t
  end
end
--#else
if listening then
--#slow
  for n = 6, #ARGV, 2 do
    local task, due = held_one(ARGV[n], ARGV[n + 1])
    done[#done + 1] = task and '1' or '0'
    if task then
--#move ack t
    end
  end
--#fast
else
  local named, tasks, first = {}, {}, ARGV[1] * TURNS
  for n = 6, #ARGV, 2 do named[#named + 1] = ARGV[n] end
  local scores = all_of('ZMSCORE', M .. ':taken', named)
  for n = 1, #named do
    local attempts, meant = (scores[n] or 0) - first, ARGV[2 * n + 5]
    if attempts < 0 or attempts >= TURNS or (meant ~= '' and attempts ~= meant + 0) then
      done[n] = '0'
    else
      done[n] = '1'
      tasks[#tasks + 1] = { id = named[n], state = 't' }
    end
  end
--#moves ack t
end
--#end
local answer = table.concat(done)
--#done answer
return answer
