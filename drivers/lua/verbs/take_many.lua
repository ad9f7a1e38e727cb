-- Take the first tasks that may be taken.
-- ARGV  6 how many at most
-- answers  {their ids, their attempts, when they are due (-1: never; '' where nothing is timed), each in one string; '1' if
--          there are more, although they are fewer than asked for; the number of the take; the tasks}; nothing if there
--          is none
--#include begin
--#include taken_already
local limit, room, leased, bare = tonumber(ARGV[6]), BYTES, false, false
--#include take_some
if values then
  local answer = table.concat(ids, ' ')
--#done answer
  return { answer, table.concat(attempts, ' '), table.concat(told, ' '), stuck and '1' or '', this_take, values }
end
--#include show_taken
