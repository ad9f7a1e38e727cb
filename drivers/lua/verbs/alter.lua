-- Change the options of the tube. Calls that were made for other options are refused from now on: the caller reads the
-- new options, and calls again.
-- ARGV  6 a new, unique name for these options, 7 the options, 8 the capacity, 9 the limits of its lanes ('': none),
--       10 '1': its lanes get a capacity for the first time, 11 microseconds by which takes may be ahead of
--       the rate: (burst - 1) times the time of a token, 12 by how many microseconds this is more than before
-- reply  nothing
--#include begin
if replayed then return end
if call('HGET', M, 'options') ~= ARGV[7] then
  call('HDEL', M, '')
  local until_then = string.match(META.listening or '0', '^%S+')
  call('HSET', M, 'listening', until_then .. ' ' .. ARGV[6], 'options', ARGV[7], 'capacity', ARGV[8])
--#if LANE
  if ARGV[10] == '1' then
    -- The next calls count the tasks of its lanes: see process_due.lua.
    soonest = 0
    call('UNLINK', M .. ':fill')
    call('HSET', M, 'recount', 0, 'soonest', 0)
  end
  local pacing = ARGV[9] == '' and '0 0 1 0 0' or ARGV[9]
  if pacing ~= (META.pacing or '0 0 1 0 0') then
    -- The next calls apply it to the lanes: see process_due.lua.
    soonest = 0
    call('HSET', M, 'pacing', pacing, 'repace', 0, 'soonest', 0)
  end
--#end
  -- The bucket keeps the time since it was empty. Callers may take sooner.
  local scheduled, starts = string.match(META.bucket or '', '^(%S+)(.*)$')
  if scheduled then
    call('HSET', M, 'bucket', string.format('%.0f', math.min(scheduled + ARGV[12], now + ARGV[11])) .. starts)
  end
  if waiting then call('ZADD', M .. ':marker', 0, 1) end
  if META.filling and META.filling + 0 > now then
    wake_all()
  end
end
--#done ''
return
