-- What came back from its taker, or got less time to live, may be past its ttl: then it is gone before it is answered.
--#if TIMED
if (task.state == 'r' or task.state == '!') and task.ttl and dead_of(task) <= now then
--#slow
--#move ttl
--#fast
end
--#end
