-- Between the machine and the verb: its caller knows the tube's options, what is due has happened, and a call that was done already is not done again.
--#if ALTERED
local session, known = string.match(ARGV[1], '^(%d+) (%x+)$')
ARGV[1] = session
local other = edition ~= known
--#else
local other = edition ~= ''
--#end
--#if LANE
--#if PACES
--#else
-- Its caller does not know yet that lanes are throttled: it has scripts that do not either.
other = other or META.pacing
--#end
--#end
if other then
  -- A call that was done before comes to its answer.
  if sub(META.answer or '', 1, 16) ~= ARGV[4] then
    return redis.error_reply('ALTERED the tube has other options than its caller knows')
  end
end
if soonest and now >= soonest then
--#if TICK|TAKE|PACED
--#slow all
--#include time
--#fast
--#else
  -- Every script is quicker the less text a server has loaded: one lets it happen, and the caller calls again.
  return redis.error_reply('DUE something is to happen first')
--#end
end
-- Numbers have 16 digits, and grow in each slot: a request that comes after a later one was overtaken by its own retry.
-- The answer stands behind its number, so it sorts as that does.
local replayed, last = false, META.answer
if last and last >= ARGV[4] then
--#slow
  -- What somebody else has written there is no answer.
  if string.find(last, '^%d+:') then
    if sub(last, 1, 16) ~= ARGV[4] then return redis.error_reply('LATE it was sent again, and answered') end
    replayed = sub(last, 18)
  end
--#fast
end
