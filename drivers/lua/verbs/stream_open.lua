-- Go on with a stream: whoever did it until now is fenced off.
-- ARGV  6 its name
-- answers  its epoch, the first of its batches that is not done, the last that was taken, and when the tube was born, in one
--          string
--#include begin
if replayed then return replayed end
local S = M .. ':stream:' .. ARGV[6]
-- A stream of a tube that had this name before is none of this one.
if call('HGET', S, 'born') ~= META.born then
  call('UNLINK', S, M .. ':skipped:' .. ARGV[6])
  call('HSET', S, 'born', META.born, 'first', 1, 'last', 0)
end
local known = call('HMGET', S, 'epoch', 'first', 'last')
-- With the number of the call nobody is given the same one again, whatever a server has lost, and wherever its clock is.
local epoch = string.format('%.0f.%s', math.max(now, string.match(known[1] or '0', '%d+') + 1), ARGV[4])
call('HSET', S, 'epoch', epoch)
call('PEXPIRE', S, IDLE)
local answer = epoch .. ' ' .. known[2] .. ' ' .. known[3] .. ' ' .. META.born
--#done answer
return answer
