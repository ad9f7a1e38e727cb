-- Collect the figures of some tubes for a monitor. It belongs to no session and changes nothing: due tasks that were
-- not moved yet are counted in their stored state.
-- KEYS[1]  the meta hash of the first tube
-- ARGV  1 the time in microseconds ('': the server's), 2… the meta hashes of all tubes, a bounded number
-- reply  {the time, and for each tube nil if it does not exist, or {driver, options, the figures as for statistics, the
--        number of live sessions, of lanes, of lanes in cooldown or blocked or without their full burst, the first
--        due time}, or {the error of this tube}}
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
  --#include counters
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
    -- Report a key of another type for this tube alone; any other error fails the whole call.
    if not string.find(why, 'WRONGTYPE', 1, true) then return redis.error_reply(why) end
    about = { why }
  end
  seen[n] = about
end
return seen
