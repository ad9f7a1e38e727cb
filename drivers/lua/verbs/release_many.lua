-- Release held tasks.
-- ARGV  6 microseconds until they are ready ('': at once; 'backoff': by the backoff of the tube), 7… as for ack_many
-- reply  as for ack_many
--#include begin
if replayed then return replayed end
local done, delay, reason = {}, ARGV[6], nil
for n = 7, #ARGV, 2 do
  local task, due = find_held(ARGV[n], ARGV[n + 1])
  done[#done + 1] = task and '1' or '0'
  if task then
--#include release_one
  end
end
local result = table.concat(done)
--#done result
return result
