-- Give held tasks back.
-- ARGV  6 microseconds until they are ready ('': at once), 7… as for ack_many
-- answers  as for ack_many
--#include begin
if replayed then return replayed end
local done = {}
for n = 7, #ARGV, 2 do
  local task, due = held_one(ARGV[n], ARGV[n + 1])
  done[#done + 1] = task and '1' or '0'
  if task then
--#if TIMED
    if ARGV[6] ~= '' then
      if task.ttl then task.ttl = task.ttl + ARGV[6] end
      due = now + ARGV[6]
--#move release_delayed t
    else
--#move release t
    end
--#else
--#move release t
--#end
  end
end
local answer = table.concat(done)
--#done answer
return answer
