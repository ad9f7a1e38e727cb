-- A task that was released, or whose ttl was shortened, may have expired: end it before the reply.
-- in: task
--#if TIMED
if (task.state == 'r' or task.state == '!') and task.ttl and ttl_end(task) <= now then
--#slow
--#move ttl
--#fast
end
--#end
