-- The attempt at `task` has ended by a release: it goes back to its place, now or after `delay` microseconds ('': now;
-- 'backoff': as long as the tube's backoff says), or aside if that was its last attempt, and then `reason` says why (nil,
-- '': that it was the last). `due` is a local too.
if is_last(task) then
--#slow
  task.reason = (reason or '') ~= '' and reason or 'max_attempts: release'
--#move release_last t
--#fast
else
--#if TIMED
--#if BACKOFF
  local span = delay == 'backoff' and rest_of(task) or tonumber(delay) or 0
--#else
  local span = tonumber(delay) or 0
--#end
  if span > 0 then
    prolong(task, span)
    due = now + span
--#move release_delayed t
  else
--#move release t
  end
--#else
--#move release t
--#end
end
