-- Commands for many words, a thousand at a time: all arguments of a command are on Lua's stack.
local call = redis.call

local Lists = {}

function Lists.run(command, key, words)
  for first = 1, #words, 1000 do
    call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

-- The same for a command that returns a value for each word; return the list of these.
function Lists.collect(command, key, words)
  if #words == 0 then return {} end
  if #words <= 1000 then return call(command, key, unpack(words)) end
  local found = {}
  for first = 1, #words, 1000 do
    local last = math.min(first + 999, #words)
    local some = call(command, key, unpack(words, first, last))
    for n = first, last do found[n] = some[n - first + 1] end
  end
  return found
end

return Lists
