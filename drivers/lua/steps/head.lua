-- The start of every script of a session: its arguments, and the fields of the meta hash.
--
-- A script consists of head.lua, the library functions that it uses, and the file of its method. That file includes
-- begin.lua first, which processes due tasks and detects repeated calls, and flush.lua or done.lua last, which wake
-- waiting processes; done.lua also stores the counters and the reply.
--
-- KEYS[1]  the tube's meta hash; the other keys are KEYS[1]..':tasks' etc., in the same hash slot
-- ARGV[1]  the number of the caller's session in this tube; in a tube whose options were changed, followed by the
--          version of the options that the caller has
-- ARGV[2]  the field of the meta hash that exists while this session does
-- ARGV[3]  the field of the meta hash that stores the last reply in this slot of the caller
-- ARGV[4]  the number of the call; a repeated call with the same number has no effect and gets the same reply
-- ARGV[5]  the time in microseconds; '': the server's
-- ARGV[6…] the arguments of the method; empty ones at the end may be omitted
--
-- META.field is a field of the meta hash: a script reads all fields that it names with one command. `--#done` writes
-- the counters among them.
-- in: nothing
-- out: call, now, meta, soonest, waiting, listening, version
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
-- Lua converts strings to numbers in arithmetic, but not in comparisons: hence + 0.
local soonest = META.soonest and META.soonest + 0
local waiting = META.waiting and META.waiting + 0 > now
-- One field holds two values, since most tubes have neither: until when clients listen to events, and the version of
-- the options if they were changed.
local listening, version = META.listening, ''
if listening then
  listening, version = string.match(listening, '^(%S+) ?(%x*)$')
  listening = listening + 0 > now
end
