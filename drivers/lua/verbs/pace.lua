-- Block a lane, or give it limits of its own.
-- ARGV  6 the lane, 7 microseconds for which it is blocked ('': unchanged), 8 its interval in microseconds (-1: the
--       tube's, '': unchanged), 9 its max_in_flight (0: the tube's, '': unchanged),
--       10 its interval_from (0: take, 1: ack, -1: the tube's, '': unchanged),
--       11 '1': keep a block that ends later, 12 its capacity (-1: the tube's, '': unchanged), in a tube whose lanes
--       have a capacity, 13 the reason of the block ('': none), 14 its burst (0: the tube's, '': unchanged)
-- reply  nothing
--#include begin
if replayed then return end
local span, interval, most = tonumber(ARGV[7]), tonumber(ARGV[8] or ''), tonumber(ARGV[9] or '')
local from, burst = tonumber(ARGV[10] or ''), tonumber(ARGV[14] or '')
local is_limited = (span or 0) > 0 or (interval or -1) >= 0 or (most or 0) > 0 or (from or -1) >= 0 or (burst or 0) > 0
--#if LANE_ROOM
local capacity = tonumber(ARGV[12] or '')
is_limited = is_limited or (capacity or -1) >= 0
--#end
if is_limited or META.pacing then
  call('HDEL', M, '')
  if not META.pacing then
    META.pacing = '0 0 1 0 0'
    call('HSET', M, 'pacing', META.pacing)
  end
  lane = ARGV[6]
  read_pace(0)
  if is_limited then pace.noted = 1 end
  local ends = span and (span > 0 and now + span or 0)
  if ends and (ARGV[11] ~= '1' or ends >= pace.blocked) then pace.blocked, pace.reason = ends, ARGV[13] or '' end
  if interval then pace.interval = interval end
  if most then pace.most = most end
  if from then pace.from = from end
  if burst then pace.burst = burst end
--#if LANE_ROOM
  if capacity then pace.capacity = capacity end
  if capacity and call('ZREM', M .. ':crowded', lane) == 1 then freed = true end
--#end
  update_cooldown()
  write_pace()
end
--#done ''
return
