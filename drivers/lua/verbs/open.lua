-- Open a tube for a session; create the tube if it does not exist.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the session's uuid, 2 its lease in microseconds ('': as long as its callers live), 3 the time in microseconds
--       ('': the server's), 4 'new': create the tube; 'same': create it, or open it if driver and options are equal;
--       'any': it must exist; 'keep': create it, or open the existing one; 'alike': as 'same', but only the driver must
--       be equal, 5 its driver, 6 its options, 7 its capacity, 8 an id of the creating call, so that it can be sent
--       again, 9 the version of the layout of its keys
-- reply  {driver, options, the number of the session, the field that marks it as alive, the time, '1' if the user may
--        not publish events, the version of the options ('': the tube was never altered), '1' if its lanes are or were
--        throttled, the commands of scripts that the user may not run}; only driver and options if the tube exists and
--        should not, or differs
local call = redis.call
local M = KEYS[1]
local lacks = {}
-- Servers before Redis 7 cannot tell.
local acl = redis.acl_check_cmd
if acl then
  local missing, needed = {}, EVERYBODY
  for name, words in pairs(COMMANDS) do
    local known, has = pcall(acl, name, unpack({ M, '', '' }, 1, words))
    if not (known and has) then table.insert(needed[name] and missing or lacks, name) end
  end
  table.sort(missing)
  if #missing > 0 then return redis.error_reply('NOPERM the user has no permission to run ' .. table.concat(missing, ', ')) end
  if not acl('HSET', M .. ':tasks', '', '') then
    return redis.error_reply('NOPERM the user has no permission for the keys that begin with ' .. M .. ':')
  end
end
local t = call('TIME')
local now = tonumber(ARGV[3]) or t[1] * 1000000 + t[2]
if call('HEXISTS', M, 'born') == 1 then
  if call('HGET', M, 'layout') ~= ARGV[9] then
    return redis.error_reply('LAYOUT ' .. M .. ' was made by another version of tubes, which stores tasks differently: export it with that version')
  end
  local there = call('HMGET', M, 'driver', 'options', 'maker')
  local maker = table.remove(there)
  if (ARGV[4] == 'new' and maker ~= ARGV[8]) or (ARGV[4] == 'same' and (there[1] ~= ARGV[5] or there[2] ~= ARGV[6])) or (ARGV[4] == 'alike' and there[1] ~= ARGV[5]) then
    return there
  end
  call('HDEL', M, '')
elseif ARGV[4] == 'any' then
  return redis.error_reply('TUBEGONE there is no such tube')
else
  if call('EXISTS', M) == 1 then return redis.error_reply('LAYOUT ' .. M .. ' is incomplete: run tubes repair') end
  local born = t[1] .. string.format('%06d', t[2])
  call('HSET', M, 'born', born, 'driver', ARGV[5], 'options', ARGV[6], 'capacity', ARGV[7], 'next', 0, 'maker', ARGV[8], 'layout', ARGV[9])
  -- If only the meta hash was removed, the other keys are left from the old tube. The markers stay: they wake waiters.
  local left = {}
  for part in string.gmatch(PARTS, '%a+') do
    if part ~= 'marker' and part ~= 'room' then left[#left + 1] = M .. ':' .. part end
  end
  call('UNLINK', unpack(left))
  local o = cjson.decode(ARGV[6])
  -- The tube expires after `idle` milliseconds without a call.
  if o.idle then call('PEXPIRE', M, o.idle) end
  local rounds, most, interval, jitter = o.order == 'round_robin', o.max_in_flight or 1, o.interval or 0, o.jitter or 0
  local from_end = o.interval_from == 'ack'
  if rounds or most > 1 or interval > 0 or jitter > 0 or from_end then
    -- The format is that of lib/paces.lua.
    call('HSET', M, 'pacing', string.format('%.0f %.17g %.0f %d %d', interval, jitter, most, rounds and 1 or 0, from_end and 1 or 0) .. (o.lane_burst and string.format(' %.0f', o.lane_burst) or ''))
  end
end
local about = call('HMGET', M, 'u' .. ARGV[1], 'born', 'driver', 'options', 'soonest', 'listening', 'pacing')
local token = about[1]
-- A session whose lease has expired is about to be removed: make a new one.
local lease = token and call('ZSCORE', M .. ':leases', token)
if not lease or tonumber(lease) <= now then
  local number, most = call('HINCRBY', M, 'sessions', 1), 134217727
  if number > most then
    -- All numbers were used: find the next number without a living session.
    local living = {}
    for _, other in ipairs(call('ZRANGE', M .. ':leases', 0, -1)) do living[string.match(other, '%d+') + 0] = true end
    repeat number = number % most + 1 until not living[number]
  end
  -- A server that lost the session may assign its number again, so the token contains the uuid.
  token = string.format('s%d.%s.%s', number, about[2], string.sub(ARGV[1], 1, 16))
  call('HSET', M, token, ARGV[1], 'u' .. ARGV[1], token)
end
local ends = ARGV[2] ~= '' and now + ARGV[2] or math.huge
call('ZADD', M .. ':leases', 'GT', ends < math.huge and ends or '+inf', token)
if ends < math.huge and ARGV[2] + 0 > (call('HGET', M, 'lease') or 0) + 0 then call('HSET', M, 'lease', ARGV[2]) end
--#include shorten_leases
local left = call('PTTL', M)
if left > 0 then call('PEXPIRE', M .. ':leases', left) end
if ends < (tonumber(about[5]) or math.huge) then call('HSET', M, 'soonest', ends) end
local cannot_publish = acl and not acl('PUBLISH', M .. ':events', '')
return { about[3], about[4], tonumber(string.match(token, '%d+')), token, now, cannot_publish and '1' or '', string.match(about[6] or '', ' (%x+)$') or '', about[7] and '1' or '', table.concat(lacks, ' ') }
