-- What is written down in `field`, `chunk`: the ids of its tasks, `named`, and the attempts by which they were taken, `meant`.
local chunk = call('HGET', S, field)
if not chunk then
--#include flush
  return false
end
local named, meant = {}, {}
for id in string.gmatch(string.match(chunk, '(.*):'), '%d+') do named[#named + 1] = id end
for attempts in string.gmatch(string.match(chunk, ':(.*)'), '%d+') do meant[#meant + 1] = attempts end
