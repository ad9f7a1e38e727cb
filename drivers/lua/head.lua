-- How every verb begins: its arguments, and what the tube knows about itself.
--
-- KEYS[1]  the tube's meta hash; its other keys are KEYS[1]..':tasks' and so on, in the same slot
-- ARGV[1]  the number of the caller's session in this tube
-- ARGV[2]  the field of the meta hash that says that this session lives
-- ARGV[3]  the field of the meta hash that keeps this caller's last answer
-- ARGV[4]  the number of the call: a call that comes again with the same number is answered, not done again
-- ARGV[5]  the time in microseconds; '': the server's
-- ARGV[6…] as the verb says
--
-- META.field is what the meta hash says; a script reads those that it names, all at once.
local call, M = redis.call, KEYS[1]
local now = tonumber(ARGV[5])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local meta = META
if not META.session then
  return redis.error_reply(call('EXISTS', M) == 1 and 'SESSIONGONE its lease was over' or 'TUBEGONE there is no such tube')
end
local soonest = tonumber(META.soonest)
local waiting = META.waiting and tonumber(META.waiting) > now
local listening = META.listening and tonumber(META.listening) > now
-- What the meta hash is to know at the end; a table that has its size from the beginning is not made three times.
local noted, notes = { 0, 0, 0, 0, 0, 0, 0, 0 }, 0
