-- Collect what a monitor wants to know of some tubes. It belongs to no session and changes nothing: what is due and has not
-- happened yet is counted as it stands.
-- KEYS[1]  the meta hash of the first of them
-- ARGV  1 the time in microseconds ('': the server's), 2… the meta hashes of all, a bounded number
-- answers  {the time, and for each tube nil, if there is none, or {driver, options, as for statistics, how many sessions
--          live, how many lanes there are, how many of them rest, when the first of what moves by itself is due}, or why
--          it cannot be looked at, in a list}
local call = redis.call
local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local later = string.format('(%.0f', now)
local most = math.floor(5000 / #ARGV)
local function look(M)
  local about = call('HMGET', M, 'driver', 'options', 'paused')
  if not about[1] then return call('EXISTS', M) == 1 and { 'it has no driver' } end
  local counted = { call('HLEN', M .. ':tasks'), call('ZCARD', M .. ':taken'), call('ZCARD', M .. ':buried') }
  counted[4] = call('HMGET', M, 'next', 'takes', 'acks', 'delayed', 'calls:release', 'calls:touch', 'calls:bury', 'calls:kick', 'calls:delete', 'calls:delay', 'calls:ttl', 'calls:ttr', 'calls:put')
  --#include waiting
  counted[5] = processes
  counted[6] = about[3]
  counted[7] = call('ZCOUNT', M .. ':ended', later, '+inf')
  return {
    about[1], about[2], counted,
    call('ZCOUNT', M .. ':leases', later, '+inf'), call('HLEN', M .. ':lanes'), call('ZCOUNT', M .. ':rests', later, '+inf'),
    call('ZRANGE', M .. ':due', 0, 0, 'WITHSCORES')[2] or false,
  }
end
local seen = { now }
for n = 2, #ARGV do
  local done, about = pcall(look, ARGV[n])
  if not done then
    -- Before Redis 7 an error is a string.
    local why = type(about) == 'table' and about.err or tostring(about)
    -- One that is no tube costs the others nothing; else all are refused.
    if not string.find(why, 'WRONGTYPE', 1, true) then return redis.error_reply(why) end
    about = { why }
  end
  seen[n] = about
end
return seen
