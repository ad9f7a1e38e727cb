-- Release `task`: it returns to its place after `delay` microseconds ('': now; 'backoff': the delay of the tube's
-- backoff). After its last attempt it is buried instead, with the `reason` as it is stored (nil or '': release).
-- in: task, delay, reason, due
-- out: due
if is_last(task) then
--#slow
  task.reason = (reason or '') ~= '' and reason or '00max_attempts: release'
--#move release_last t
--#fast
else
--#if TIMED
--#if BACKOFF
  local span = delay == 'backoff' and backoff_delay(task) or tonumber(delay) or 0
--#else
  local span = tonumber(delay) or 0
--#end
  if span > 0 then
    extend_ttl(task, span)
    due = now + span
--#move release_delayed t
  else
--#move release t
  end
--#else
--#move release t
--#end
end
