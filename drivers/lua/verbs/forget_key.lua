-- Forget a key that is remembered after its task was removed.
-- ARGV  6 the key
-- reply  '1' if the key was remembered, else '0', also if its task is still in the tube
--#include begin
if replayed then return replayed end
local id, lives = find_key(ARGV[6])
if lives or not id then
--#include flush
  return '0'
end
-- A server that is out of memory lets a script write after a command that frees memory.
call('HDEL', M, '')
write_known(ARGV[6])
--#done '1'
return '1'
