-- Read tasks without their data, or kept done tasks.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 'tasks' or 'done', 2 '1': done tasks with their data, 3 and 4 two moments: skip done tasks unless they ended
--       after the first and not after the second, 5… ids, a bounded number
-- reply  {the number of ids that were read; the bytes before the data of each, nil: it does not exist; the score of
--        each in ':taken', if any task is taken; the due time of each, if any task has one}; nil: the tube does not
--        exist
local call, byte, sub, M = redis.call, string.byte, string.sub, KEYS[1]
if call('EXISTS', M) == 0 then return nil end
-- Return the position after the text that begins at `at`.
local function after(value, at)
  local length = byte(value, at)
  if length < 255 then return at + 1 + length end
  return at + 5 + struct.unpack('>I4', value, at + 1)
end
-- Return the position after the fields that the flags announce; `sizes`: their sizes in bytes, as in lib/task.lua.
local function skip(flags, value, at, sizes)
  for bit, size in ipairs(sizes) do
    if flags % 2 ^ bit >= 2 ^ (bit - 1) then at = size < 0 and after(value, at) or at + size end
  end
  return at
end
local function body_of(flags, value, begin)
  local at = skip(flags, value, begin + 8, { 0, 0, 3, 4, 7, 7, -1 })
  return flags < 128 and at or skip(byte(value, at), value, at + 1, { 3, -1, 7, -1, 0, -1, 7, 16 })
end
local part, are_whole, since, to = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- Return the position of the task in its record (see lib/kept.lua); nil: outside of the requested time, or expired.
local function kept_at(value)
  local _, ended, ends, _, has = struct.unpack('>c1I7I7I3I1', value)
  if ends <= now or ended <= since or ended > to then return nil end
  return has == 1 and after(value, 20) or 20
end
local heads, taken, due, size, looked, count = {}, {}, {}, 0, 0, #ARGV - 4
while looked < count and size < BYTES do
  looked = looked + 1
  local value = call('HGET', M .. ':' .. part, ARGV[looked + 4])
  -- An unreadable task is returned unchanged.
  local is_read, begin = true, 1
  if value and part == 'done' then
    is_read, begin = pcall(kept_at, value)
    if not begin then value = false end
  end
  if value then
    size = size + #value
    local flags, at = is_read and byte(value, begin), begin
    if flags and flags >= 4 then
      is_read, at = pcall(body_of, flags, value, begin)
    elseif is_read then
      at = begin + 8
    end
    if is_read and not are_whole then value = sub(value, 1, at - 1) end
  end
  heads[looked] = value
end
-- The arguments of a command are limited by Lua's stack.
local function scores(key, word, found)
  if call('EXISTS', key) == 0 then return end
  for first = 1, looked, 1000 do
    local words = {}
    for n = first, math.min(first + 999, looked) do words[#words + 1] = word(ARGV[n + 4]) end
    for _, score in ipairs(call('ZMSCORE', key, unpack(words))) do found[#found + 1] = score end
  end
end
if part == 'tasks' then
  scores(M .. ':taken', tostring, taken)
  scores(M .. ':due', function(id) return struct.pack('>I6', id) end, due)
end
return { looked, heads, taken, due }
