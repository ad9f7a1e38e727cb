-- Open a tube for a session; make the tube if it is not there.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the session's uuid, 2 its lease in microseconds ('': it lasts for as long as its callers live),
--       3 the time in microseconds ('': the server's),
--       4 'new': make the tube; 'same': make it, or open it if it is the same; 'any': it must be there,
--       5 its driver, 6 its options, 7 its capacity, 8 who makes it: if the answer is lost it is asked for again
-- answers  {driver, options, the number of the session, the field that says that it lives, the time}; only the first two
--          if the tube is there and should not be
local call = redis.call
local M = KEYS[1]
local t = call('TIME')
if call('HEXISTS', M, 'born') == 1 then
  local there = call('HMGET', M, 'driver', 'options', 'maker')
  local maker = table.remove(there)
  if (ARGV[4] == 'new' and maker ~= ARGV[8]) or (ARGV[4] == 'same' and (there[1] ~= ARGV[5] or there[2] ~= ARGV[6])) then return there end
  call('HDEL', M, '')
elseif ARGV[4] == 'any' then
  return redis.error_reply('TUBEGONE there is no such tube')
else
  local born = t[1] .. string.format('%06d', t[2])
  call('HSET', M, 'born', born, 'driver', ARGV[5], 'options', ARGV[6], 'capacity', ARGV[7], 'next', 0, 'maker', ARGV[8])
  local o = cjson.decode(ARGV[6])
  -- One that goes by itself, when nobody has used it for so many milliseconds.
  if o.idle then call('PEXPIRE', M, o.idle) end
  local rounds, most, interval, jitter = o.order == 'round_robin', o.max_in_flight or 1, o.interval or 0, o.jitter or 0
  if rounds or most > 1 or interval > 0 or jitter > 0 then
    -- As paces.lua reads it.
    call('HSET', M, 'pacing', string.format('%.0f %.17g %.0f %d', interval, jitter, most, rounds and 1 or 0))
  end
end
local now = tonumber(ARGV[3]) or t[1] * 1000000 + t[2]
local about = call('HMGET', M, 'u' .. ARGV[1], 'born', 'driver', 'options', 'soonest')
local token = about[1]
-- One whose lease is over is about to be forgotten: whoever opens the tube now begins anew.
local lease = token and call('ZSCORE', M .. ':leases', token)
if not lease or tonumber(lease) <= now then
  token = 's' .. call('HINCRBY', M, 'sessions', 1) .. '.' .. about[2]
  call('HSET', M, token, ARGV[1], 'u' .. ARGV[1], token)
end
local ends = ARGV[2] ~= '' and now + ARGV[2] or math.huge
call('ZADD', M .. ':leases', 'GT', ends < math.huge and ends or '+inf', token)
local left = call('PTTL', M)
if left > 0 then call('PEXPIRE', M .. ':leases', left) end
if ends < (tonumber(about[5]) or math.huge) then call('HSET', M, 'soonest', ends) end
return { about[3], about[4], tonumber(string.match(token, '%d+')), token, now }
