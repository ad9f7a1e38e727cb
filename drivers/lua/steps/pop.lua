-- Pop the first task that may be taken and leave its `id`. false: no task may be taken; nil: not found yet, because
-- of too many stale ids.
-- in: id
-- out: id
--#if RATED
if (META.paused and META.paused + 0 > now) or tokens() == 0 then
--#else
if META.paused and META.paused + 0 > now then
--#end
  id = false
--#if LIST
elseif strays == 0 then
  id = call(POP, M .. ':ready')
else
--#slow
  id = pop_slow()
--#fast
end
--#else
else
  local at = call('ZPOPMIN', M .. READY)[1]
  -- id_at inlined: its definition would slow down each take.
  id = at and unpack_struct('>I6', at, #at - 5) or false
  if NEWEST_FIRST and id then id = 281474976710655 - id end
end
--#end
