-- The same of each of the `lanes`, in the order in which they came. `more`: by how many tasks each grows. The error says which
-- lane is full, in hexadecimal digits, how many more it was to have, and how many have room.
for n = 1, #lanes do
  local name = lanes[n]
  local most = more[name] > 0 and capacity_of(name) or 0
  if most > 0 and (call('HGET', M .. ':fill', name) or 0) + more[name] > most then
    if callers ~= '' then
--#slow
      wait_for_room(needed, callers, process, name)
--#fast
    end
--#include flush
    local digits = string.gsub(name, '.', function(char) return string.format('%02x', byte(char)) end)
    return redis.error_reply('LANEFULL x' .. digits .. ' ' .. more[name] .. ' ' .. most)
  end
end
