-- What a kicked task gets: so many more attempts, so many microseconds to live from now on ('': what it has).
local function respawn(task, attempts, ttl)
  task.reason = false
  if attempts ~= '' then task.most = task.attempts + attempts end
--#if TIMED
  if ttl ~= '' then task.ttl = now - task.created + ttl end
--#end
end
