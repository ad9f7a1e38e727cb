--#if TIMED
-- Let a task live for `span` microseconds from now, or from its put if the clock was set back to before the put.
local function set_ttl(task, span)
  task.ttl = math.max(now - task.created, 0) + span
end
--#end

-- Reset a kicked task: `attempts` more attempts, and `ttl` microseconds to live from now on ('': unchanged).
local function reset_kicked(task, attempts, ttl)
  count_event(task, 3)
  task.reason = false
  if attempts ~= '' then task.most = task.attempts + attempts end
  if ttl ~= '' then set_ttl(task, ttl) end  --#if TIMED
end
