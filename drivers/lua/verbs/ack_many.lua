-- Ack held tasks.
-- ARGV  6… for each task its id and its take, as for ack
-- reply  for each task '1' if it is done, '0' if it was not held
--#include begin
if replayed then return replayed end
local named, expected = {}, {}
for n = 6, #ARGV, 2 do named[n / 2 - 2], expected[n / 2 - 2] = ARGV[n], ARGV[n + 1] end
--#include ack_some
local result = table.concat(done)
--#done result
return result
