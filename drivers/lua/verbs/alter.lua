-- Give the tube other options. From now on a call that goes by others is refused: its caller reads them, and calls again.
-- ARGV  6 a name for them that no other ones had, 7 the options, 8 the capacity, 9 what its lanes are asked for ('': nothing)
-- answers  nothing
--#include begin
if replayed then return end
if call('HGET', M, 'options') ~= ARGV[7] then
  call('HDEL', M, '')
  local until_then = string.match(META.listening or '0', '^%S+')
  call('HSET', M, 'listening', until_then .. ' ' .. ARGV[6], 'options', ARGV[7], 'capacity', ARGV[8])
--#if LANE
  local pacing = ARGV[9] == '' and '0 0 1 0 0' or ARGV[9]
  if pacing ~= (META.pacing or '0 0 1 0 0') then
    -- Its lanes go by it from the next call on: see time.lua.
    soonest = 0
    call('HSET', M, 'pacing', pacing, 'repace', 0, 'soonest', 0)
  end
--#end
  if META.filling and META.filling + 0 > now then
    -- Each process that waits for room looks whether it has some now, a thousand at most.
    local markers = {}
    for n = 1, math.min(call('HLEN', M .. ':waiting'), 1000) do markers[2 * n - 1], markers[2 * n] = 0, n end
    many('ZADD', M .. ':room', markers)
  end
end
--#done ''
return
