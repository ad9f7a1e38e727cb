-- Look at tasks without their data.
-- KEYS[1]  the tube's meta hash
-- ARGV  1… ids, a bounded number
-- answers  {how many of them were looked at; what stands before the data of each that was, nil: it is not there; of each
--          the score in ':taken', if any task is taken; when each is due, if any ever is}; nil: there is no such tube
local call, byte, sub, M = redis.call, string.byte, string.sub, KEYS[1]
if call('EXISTS', M) == 0 then return nil end
-- Where the text ends that begins here.
local function after(value, at)
  local length = byte(value, at)
  if length < 255 then return at + 1 + length end
  return at + 5 + struct.unpack('>I4', value, at + 1)
end
-- What the flags of a task announce, as lib/task.lua has them, takes so many bytes.
local function skip(flags, value, at, sizes)
  for bit, size in ipairs(sizes) do
    if flags % 2 ^ bit >= 2 ^ (bit - 1) then at = size < 0 and after(value, at) or at + size end
  end
  return at
end
local function body_of(flags, value)
  local at = skip(flags, value, 9, { 0, 0, 3, 4, 7, 7, -1 })
  return flags < 128 and at or skip(byte(value, at), value, at + 1, { 3, -1, 7, -1, 0, -1, 7, 16 })
end
local heads, taken, due, size, looked = {}, {}, {}, 0, 0
while looked < #ARGV and size < BYTES do
  looked = looked + 1
  local value = call('HGET', M .. ':tasks', ARGV[looked])
  if value then
    size = size + #value
    local flags = byte(value, 1)
    -- One that cannot be read is sent as it is.
    local is_whole, at = true, 9
    if flags and flags >= 4 then is_whole, at = pcall(body_of, flags, value) end
    if is_whole then value = sub(value, 1, at - 1) end
  end
  heads[looked] = value
end
-- Commands have so many words at most, since all stand on Lua's stack.
local function scores(key, word, found)
  if call('EXISTS', key) == 0 then return end
  for first = 1, looked, 1000 do
    local words = {}
    for n = first, math.min(first + 999, looked) do words[#words + 1] = word(ARGV[n]) end
    for _, score in ipairs(call('ZMSCORE', key, unpack(words))) do found[#found + 1] = score end
  end
end
scores(M .. ':taken', tostring, taken)
scores(M .. ':due', function(id) return struct.pack('>I6', id) end, due)
return { looked, heads, taken, due }
