-- Commands for many words, a thousand at a time, since all arguments of a command are on Lua's stack; and searches.
local call = redis.call
local byte = string.byte

local Lists = {}

function Lists.run(command, key, words)
  local count = #words
  if count == 0 then return end
  if count <= 1000 then return call(command, key, unpack(words)) end
  for first = 1, count, 1000 do
    call(command, key, unpack(words, first, math.min(first + 999, count)))
  end
end

-- True if a text comes before another one byte by byte, as members of a sorted set. `<` depends on the server's locale.
function Lists.precedes(text, other)
  for n = 1, math.min(#text, #other) do
    local a, b = byte(text, n), byte(other, n)
    if a ~= b then return a < b end
  end
  return #text < #other
end

-- The same as `run` for a command that returns a value for each word; return the list of these.
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

-- Return the next cursor and the fields of a part of a hash.
function Lists.scan_fields(key, cursor, count)
  local page = redis.pcall('HSCAN', key, cursor, 'COUNT', count, 'NOVALUES')
  if not page.err then return page[1], page[2] end
  -- Servers before Redis 7.4 and Valkey 8 have no NOVALUES.
  page = call('HSCAN', key, cursor, 'COUNT', count)
  local fields = {}
  for n = 1, #page[2], 2 do fields[#fields + 1] = page[2][n] end
  return page[1], fields
end

-- Return the first position from `low` on and below `high` that does not come before the wanted one, else `high`.
function Lists.search(low, high, comes_before)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if comes_before(middle) then low = middle + 1 else high = middle end
  end
  return low
end

-- Return the number of entries of a sorted set before this one; `counts_it`: including it.
function Lists.count_before(key, score, member, counts_it)
  return Lists.search(call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score), function(n)
    local its = call('ZRANGE', key, n, n)[1]
    return Lists.precedes(its, member) or (counts_it and its == member)
  end)
end

return Lists
