-- The end of every script, successful or not: wake processes that wait.
--
-- A waiting process blocks on the sorted set ':marker' with BZPOPMIN. If there is a task to take, leave one marker.
-- The process that pops it sends a take, and that script leaves the next marker. A process that pops a marker but
-- gets no task sleeps until the next due time, so leave a marker also if that time has become earlier. Processes that
-- wait for room block on ':room' in the same way.
-- in: nothing
--#if LIST
if (META.loose or 0) + 0 >= 1000 then
--#slow
  remove_stale()
--#fast
end
--#end
if waiting then
--#slow
  if (takeable() and not paused()) or (soonest and soonest < (tonumber(META.soonest) or math.huge)) then call('ZADD', M .. ':marker', 0, 1) end
--#fast
end
--#if ROOM
if META.filling and META.filling + 0 > now then
--#slow
  if has_room() then call('ZADD', M .. ':room', 0, 1) end
--#fast
--#if LANE_ROOM
  if freed then
--#slow
    wake_all()
--#fast
  end
--#end
end
--#end
--#if BRIEF
-- All keys of a tube with the option `idle` expire after UNUSED milliseconds without a call.
call('PEXPIRE', M, UNUSED)
for part in string.gmatch(PARTS, '%a+') do call('PEXPIRE', M .. ':' .. part, UNUSED) end
--#end
