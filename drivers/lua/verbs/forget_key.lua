-- Forget a key that is remembered after its task has gone.
-- ARGV  6 the key
-- answers  '1' if the key was remembered, else '0'; a key whose task is in the tube is not
--#include begin
if replayed then return replayed end
local id, lives = find_key(ARGV[6])
if lives or not id then
--#include flush
  return '0'
end
-- After a command that frees memory a server without any lets the script write.
call('HDEL', M, '')
write_known(ARGV[6])
--#done '1'
return '1'
