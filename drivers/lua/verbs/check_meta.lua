-- Check the types of a tube's keys and the fields of its meta hash, which all other checks depend on.
-- KEYS[1]  the meta hash
-- ARGV  1 '1': repair, 2 the time, 3 the type of ':ready', 4 its capacity, 5 the limits of its lanes ('': none), 6 the
--       highest id of a task ('': unknown; then the next id is not repaired), 7 the factor of the session number in the
--       scores of tasks, 8 the expected layout of its keys, 9 a new, unique name for its options
-- reply  the problems: a kind and its subject, alternating
local call, M = redis.call, KEYS[1]
if call('HGET', M, 'layout') ~= ARGV[8] then
  return redis.error_reply('LAYOUT ' .. M .. ' was made by another version of tubes, which stores tasks differently')
end
local repairs, found = ARGV[1] == '1', {}
local function note(kind, about)
  found[#found + 1], found[#found + 2] = kind, about
  return repairs
end
if repairs then call('HDEL', M, '') end
local types = {
  tasks = 'hash', ready = ARGV[3], taken = 'zset', due = 'zset', buried = 'zset', back = 'zset', offers = 'zset',
  behind = 'zset', lanes = 'hash', rests = 'zset', fill = 'hash', crowded = 'zset', keys = 'hash', known = 'hash', done = 'hash', ended = 'zset', leases = 'zset', waiting = 'hash', wanting = 'zset',
  marker = 'zset', room = 'zset', sealed = 'zset', broken = 'hash',
}
for part, right in pairs(types) do
  local there = call('TYPE', M .. ':' .. part).ok
  if there ~= right and there ~= 'none' and note('type', part) then call('UNLINK', M .. ':' .. part) end
end
-- Members sort by their bytes: all scores must be 0.
for _, part in ipairs({ 'ready', 'back', 'behind', 'buried' }) do
  local key = M .. ':' .. part
  while call('TYPE', key).ok == 'zset' do
    local some = call('ZRANGEBYSCORE', key, '-inf', '(0', 'LIMIT', 0, 1000)
    if #some == 0 then some = call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, 1000) end
    if #some == 0 then break end
    for _, at in ipairs(some) do
      if note('entry', part .. ' ' .. at) then call('ZADD', key, 0, at) end
    end
    if not repairs then break end
  end
end
local function ranks(key, ...)
  return call('TYPE', key).ok == 'zset' and call('ZRANGE', key, ...) or {}
end
-- Return the number in the token of a session.
local function number_of(token)
  return tonumber(string.match(token, '^s(%d+)%.') or 0)
end
local function is_count(words)
  return words and string.match(words, '^%-?%d+$') and #words <= 16
end
local function is_moment(words)
  local moment = tonumber(words)
  return moment and moment == moment
end
local function field(name, is_right, right)
  local words = call('HGET', M, name)
  if (not words and right == nil) or (words and is_right(words)) then return end
  if note('field', name) then
    if right then call('HSET', M, name, right) else call('HDEL', M, name) end
  end
end
if call('HEXISTS', M, 'born') == 0 and note('field', 'born') then
  local born
  for _, token in ipairs(ranks(M .. ':leases', 0, -1)) do born = born or string.match(token, '^s%d+%.(%d+)') end
  local t = call('TIME')
  call('HSET', M, 'born', born or t[1] .. string.format('%06d', t[2]))
end
local next_id = call('HGET', M, 'next')
if not next_id or not string.match(next_id, '^%d+$') or #next_id > 14 then
  note('field', 'next')
  if repairs and tonumber(ARGV[6]) then call('HSET', M, 'next', string.format('%.0f', ARGV[6] + 1)) end
end
-- The number of a session must not be used twice.
if not is_count(call('HGET', M, 'sessions')) and #ranks(M .. ':leases', 0, 0) > 0 and note('field', 'sessions') then
  local last = ranks(M .. ':taken', 0, 0, 'REV', 'WITHSCORES')[2]
  local highest = math.floor((tonumber(last) or 0) / ARGV[7])
  for _, token in ipairs(ranks(M .. ':leases', 0, -1)) do highest = math.max(highest, number_of(token)) end
  call('HSET', M, 'sessions', string.format('%.0f', highest))
end
local highest = 0
if call('TYPE', M .. ':lanes').ok == 'hash' and not is_count(call('HGET', M, 'lanes')) then
  -- Lanes with limits of their own that never had a task have no number.
  for _, record in ipairs(call('HVALS', M .. ':lanes')) do
    local key = string.sub(record, 1, 5)
    if string.byte(record, 1) == 255 then
      local reads, first = pcall(cmsgpack.unpack, string.sub(record, 2))
      key = reads and type(first) == 'string' and first or ''
    end
    if #key == 5 and string.byte(key, 1) < 128 then highest = math.max(highest, struct.unpack('>I5', key)) end
  end
end
if highest == 0 then
  field('lanes', is_count)
elseif note('field', 'lanes') then
  call('HSET', M, 'lanes', string.format('%.0f', highest))
end
field('capacity', is_count, ARGV[4])
field('pacing', function(words)
  return string.match(words, '^%d+ [%d%.e+-]+ %d+ [01] [01] ?%d*$')
end, ARGV[5] ~= '' and ARGV[5] or nil)
field('bucket', function(words)
  return string.match(words, '^%-?%d+ %d+[ %d]*$')
end)
local listening = call('HGET', M, 'listening')
local ends, version = string.match(listening or '0', '^(%S+) ?(%x*)$')
if (not is_moment(ends) or #version > 32) and note('field', 'listening') then
  -- A version of the options that no caller knows: all callers read the options again.
  call('HSET', M, 'listening', '0 ' .. ARGV[9])
end
for _, name in ipairs({ 'repace', 'takes', 'acks', 'rounds', 'sessions' }) do field(name, is_count) end
for _, name in ipairs({ 'delayed', 'loose' }) do field(name, is_count) end
for _, name in ipairs({ 'release', 'touch', 'bury', 'kick', 'delete', 'delay', 'ttl', 'ttr', 'put' }) do field('calls:' .. name, is_count) end
for _, name in ipairs({ 'oldest', 'soonest', 'late', 'paused', 'waiting', 'filling' }) do field(name, is_moment) end
return found
