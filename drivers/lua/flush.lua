-- How every verb ends, whatever came of it. While somebody waits for what there is, leave one marker: whoever finds it
-- takes, and the next marker is left by that. Who finds it and nothing to take sleeps until the next moment at which
-- something is due: so one is left too when that comes sooner.
--#if LIST
if (META.loose or 0) + 0 >= 1000 then
--#slow if (META.loose or 0) + 0 >= 1000
  tidy()
--#fast
end
--#end
if waiting then
--#slow if waiting
  if (takeable() and not pauses()) or (soonest and soonest < (tonumber(META.soonest) or math.huge)) then call('ZADD', M .. ':marker', 0, 1) end
--#fast
end
--#if ROOM
if META.filling and META.filling + 0 > now then
--#slow if META.filling and META.filling + 0 > now
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
-- Of a tube that goes by itself nothing stays when nobody has used it for so long.
call('PEXPIRE', M, UNUSED)
for part in string.gmatch(PARTS, '%a+') do call('PEXPIRE', M .. ':' .. part, UNUSED) end
--#end
