-- Between the machine and the verb: what is due has happened, and a call that was done already is not done again.
if soonest and now >= soonest then
--#slow
--#include time
--#fast
end
-- Numbers have 16 digits, and grow in each slot: a request that comes after a later one was overtaken by its own retry.
local replayed, last = false, META.answer and sub(META.answer, 1, 16)
if last and last >= ARGV[4] then
  if last ~= ARGV[4] then return redis.error_reply('LATE it was sent again, and answered') end
  replayed = sub(META.answer, 18)
end
