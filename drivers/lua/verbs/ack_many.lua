-- Ack held tasks.
-- ARGV  6… of each its id, and the take by which the caller has it, as for ack
-- answers  for each '1' if it was done, '0' if it was not held
--#include begin
if replayed then return replayed end
local named, meant = {}, {}
for n = 6, #ARGV, 2 do named[n / 2 - 2], meant[n / 2 - 2] = ARGV[n], ARGV[n + 1] end
--#include ack_some
local answer = table.concat(done)
--#done answer
return answer
