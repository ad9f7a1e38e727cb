-- Take the next tasks.
-- ARGV  6 the maximum number of tasks
-- reply  {their ids, their attempts, their due times (-1: none; '' in tubes without due times), each in one string; '1'
--        if more tasks can be taken although these are fewer than requested; the number of the take; the tasks}; an
--        empty list if no task can be taken
--#include begin
--#include taken_already
local limit, room, leased, bare = tonumber(ARGV[6]), BYTES, false, false
--#include take_some
if values then
  local result = table.concat(ids, ' ')
--#done result
  return { result, table.concat(attempts, ' '), table.concat(due_times, ' '), stuck and '1' or '', this_take, values }
end
--#include show_taken
