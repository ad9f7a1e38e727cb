-- What is written down in `field`, `chunk`: the ids of its tasks, `named`, and the attempts by which they were taken, `meant`.
local chunk = call('HGET', S, field)
if not chunk then
--#include flush
  return false
end
local named, meant, size = {}, {}, 0
local ids, by = string.match(chunk, '(.*):(.*)')
for id in string.gmatch(ids, '%d+') do
  size = size + 1
  named[size] = id
end
if string.find(by, ' ', 1, true) then
  for attempts in string.gmatch(by, '%d+') do meant[#meant + 1] = attempts end
else
  for n = 1, size do meant[n] = by end
end
