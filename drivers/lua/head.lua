-- How every verb begins: its arguments, and what the tube knows about itself.
--
-- KEYS[1]  the tube's meta hash; its other keys are KEYS[1]..':tasks' and so on, in the same hash slot
-- ARGV[1]  the number of the caller's session in this tube; in one that was altered also which edition of its options the
--          caller knows
-- ARGV[2]  the field of the meta hash that says that this session lives
-- ARGV[3]  the field of the meta hash that keeps this caller's last answer
-- ARGV[4]  the number of the call: a call that comes again with the same number is answered, not done again
-- ARGV[5]  the time in microseconds; '': the server's
-- ARGV[6…] as the verb says; empty ones at the end may be left out
--
-- META.field is what the meta hash says; a script reads those that it names, all at once. What it counts it counts there,
-- and `--#done` writes it down.
local call, M, ARGV = redis.call, KEYS[1], ARGV
local now
if ARGV[5] == '' then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now = tonumber(ARGV[5])
end
local meta = META
if not META.session then
  return redis.error_reply(call('EXISTS', M) == 1 and 'SESSIONGONE its lease was over' or 'TUBEGONE there is no such tube')
end
-- Lua takes the digits for a number where it counts or, after + 0, compares.
local soonest = META.soonest and META.soonest + 0
local waiting = META.waiting and META.waiting + 0 > now
-- Both stand in one field, since calls seldom find any of them: until when somebody listens, and which edition the options
-- are of, if the tube was altered.
local listening, edition = META.listening, ''
if listening then
  listening, edition = string.match(listening, '^(%S+) ?(%x*)$')
  listening = listening + 0 > now
end
