-- Give the tube other options. From now on a call that goes by others is refused: its caller reads them, and calls again.
-- ARGV  6 a name for them that no other ones had, 7 the options, 8 the capacity, 9 what its lanes are asked for ('': nothing),
--       10 '1': its lanes get a capacity for the first time
-- answers  nothing
--#include begin
if replayed then return end
if call('HGET', M, 'options') ~= ARGV[7] then
  call('HDEL', M, '')
  local until_then = string.match(META.listening or '0', '^%S+')
  call('HSET', M, 'listening', until_then .. ' ' .. ARGV[6], 'options', ARGV[7], 'capacity', ARGV[8])
--#if LANE
  if ARGV[10] == '1' then
    -- The tasks of its lanes are counted by the next calls: see time.lua.
    soonest = 0
    call('UNLINK', M .. ':fill')
    call('HSET', M, 'recount', 0, 'soonest', 0)
  end
  local pacing = ARGV[9] == '' and '0 0 1 0 0' or ARGV[9]
  if pacing ~= (META.pacing or '0 0 1 0 0') then
    -- Its lanes go by it from the next call on: see time.lua.
    soonest = 0
    call('HSET', M, 'pacing', pacing, 'repace', 0, 'soonest', 0)
  end
--#end
  if META.filling and META.filling + 0 > now then
    wake_all()
  end
end
--#done ''
return
