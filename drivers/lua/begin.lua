-- Between the machine and the verb: what is due has happened, and a call that was done already is not done again.
if soonest and now >= soonest then
--#slow
--#include time
--#fast
end
local replayed = META.answer
if replayed then
  local number = ARGV[4] .. ':'
  replayed = sub(replayed, 1, #number) == number and sub(replayed, #number + 1)
end
