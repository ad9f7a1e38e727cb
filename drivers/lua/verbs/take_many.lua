-- Take the first tasks that may be taken.
-- ARGV  6 how many at most
-- answers  {their ids, their attempts, when they are due (-1: never; '' where nothing is timed), each in one string; '1' if
--          there are more, although they are fewer than asked for; the number of the take; the tasks}; nothing if there
--          is none
--#include begin
if replayed then
--#slow
  local tasks = {}
  for id in string.gmatch(replayed, '%d+') do
    tasks[#tasks + 1] = held_one(id, this_take)
--#if TIMED
    if tasks[#tasks] then tasks[#tasks].due = due_of(tasks[#tasks].id) end
--#end
  end
  -- And perhaps there were more.
  if #tasks > 0 then return shown_all(tasks, true) end
--#fast
end
local limit, room, leased, bare = tonumber(ARGV[6]), BYTES, false, false
--#include take_some
if values then
  local answer = table.concat(ids, ' ')
--#done answer
  return { answer, table.concat(attempts, ' '), table.concat(told, ' '), stuck and '1' or '', this_take, values }
end
if #tasks == 0 then
--#include flush
  return {}
end
local reply = shown_all(tasks, stuck)
local answer = reply[1]
--#done answer
return reply
