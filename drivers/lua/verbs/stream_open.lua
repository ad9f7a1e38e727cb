-- Continue a stream: its earlier reader is fenced off.
-- ARGV  6 its name
-- reply  its epoch, its first batch that is not done, its last batch that was taken, and the moment when the tube was
--        created, in one string
--#include begin
if replayed then return replayed end
local stream = M .. ':stream:' .. ARGV[6]
-- Remove a stream that belongs to an earlier tube of this name.
if call('HGET', stream, 'born') ~= META.born then
  call('UNLINK', stream, M .. ':skipped:' .. ARGV[6])
  call('HSET', stream, 'born', META.born, 'first', 1, 'last', 0)
end
local known = call('HMGET', stream, 'epoch', 'first', 'last')
-- The number of the call makes the epoch unique, even if the server lost writes or its clock was set back.
local epoch = string.format('%.0f.%s', math.max(now, string.match(known[1] or '0', '%d+') + 1), ARGV[4])
call('HSET', stream, 'epoch', epoch)
call('PEXPIRE', stream, IDLE)
local result = epoch .. ' ' .. known[2] .. ' ' .. known[3] .. ' ' .. META.born
--#done result
return result
