--#if TIMED
-- Let a task live for `span` microseconds from now, or from its put if the clock was set back to before the put.
local function live(task, span)
  task.ttl = math.max(now - task.created, 0) + span
end
--#end

-- Reset a kicked task: `attempts` more attempts, and `ttl` microseconds to live from now on ('': unchanged).
local function respawn(task, attempts, ttl)
  note_past(task, 3)
  task.reason = false
  if attempts ~= '' then task.most = task.attempts + attempts end
  if ttl ~= '' then live(task, ttl) end  --#if TIMED
end
