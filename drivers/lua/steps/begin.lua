-- Between head.lua and the method: check that the caller has the current options of the tube, process due tasks, and
-- detect a repeated call.
-- in: nothing
-- out: replayed, last
--#if ALTERED
local session, known = string.match(ARGV[1], '^(%d+) (%x+)$')
ARGV[1] = session
local other = version ~= known
--#else
local other = version ~= ''
--#end
--#if LANE
-- The caller does not know yet that lanes are throttled, so its scripts do not support that.
other = other or META.pacing  --#unless PACES
--#end
if other then
  -- A repeated call still gets its first reply.
  if sub(META.stored_reply or '', 1, 16) ~= ARGV[4] then
    return redis.error_reply('ALTERED the options are outdated')
  end
end
if soonest and now >= soonest then
--#if TICK|TAKE|PACED
--#slow
--#include process_due
--#fast
--#else
  -- Shorter scripts load and run faster, so only a few contain process_due.lua. The caller runs such a script (`tick`),
  -- then repeats this call.
  return redis.error_reply('DUE call tick first')
--#end
end
-- Call numbers have 16 digits and increase in each slot. A number below the last one belongs to a request that its
-- own retry has overtaken. The field is NUMBER:REPLY, so fields sort by number.
local replayed, last = false, META.stored_reply
if last and last >= ARGV[4] then
--#slow
  -- Ignore a value that no script has written.
  if string.find(last, '^%d+:') then
    if sub(last, 1, 16) ~= ARGV[4] then return redis.error_reply('LATE a later call was answered') end
    replayed = sub(last, 18)
  end
--#fast
end
