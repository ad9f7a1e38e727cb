-- The end of a method that takes `task`. ARGV 9: the ttr of this take ('': its own); a task without a ttr keeps it.
-- in: task
local ttr = tonumber(ARGV[9] or nil) or task.ttr
local due = ttr and now + ttr
--#if TIMED
if ttr and not task.ttr then
  task.ttr = ttr
  write(task)
end
--#end
task.owner = ARGV[1]
--#move take r
--#include encode_facts
--#done result
return result .. task.value
