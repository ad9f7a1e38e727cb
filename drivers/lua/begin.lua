-- Between the machine and the verb: what is due has happened, and a call that was done already is not done again.
if soonest and now >= soonest then
--#slow
--#include time
--#fast
end
local number, replayed = ARGV[4], false
if string.byte(number) == 82 then
--#slow
  number = sub(number, 2)
  local answer = call('HGET', M, ARGV[3])
  replayed = answer and sub(answer, 1, #number + 1) == number .. ':' and sub(answer, #number + 2)
--#fast
end
