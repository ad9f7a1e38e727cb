-- List some of the lanes, or one lane.
-- ARGV  6 the cursor; 0: the beginning, 7 the lane (optional)
-- reply  {the next cursor (0: the end), and for each lane: its name, its ready tasks, its taken tasks, the end of its
--        cooldown or block (0: none), its interval in microseconds, its max_in_flight, its capacity, the end of its
--        block (0: none), its burst, the reason of the block ('': none) and the moment of the put of its next task
--        (-1: none)}
--#include begin
--#include flush
local page = ARGV[7] and { '0', { ARGV[7], '' } } or call('HSCAN', M .. ':lanes', ARGV[6], 'COUNT', 200)
local seen = { page[1] }
for n = 1, #page[2], 2 do
  lane = page[2][n]
  read_pace(0)
  local number = lane_key and unpack_struct('>I5', lane_key)
  local ready = number and call('ZLEXCOUNT', M .. ':behind', '[' .. lane_key, '(' .. pack('>I5', number + 1)) or 0
  local interval, burst = lane_rate()
  local next_start = pace.free == 0 and pace.cooldown or 0
  local most = pace.most > 0 and pace.most or pace.tube_most
  local first = lane_head or (ready > 0 and next_in_lane())
  local value = first and call('HGET', M .. ':tasks', id_at(first))
  local since = value and unpack_struct('>I7', value, 2) or -1
  if lane_head then ready = ready + 1 end
  local capacity = 0
  capacity = pace.capacity >= 0 and pace.capacity or LANE_CAPACITY  --#if LANE_ROOM
  local blocked = pace.blocked > now
  local block_end, reason = blocked and pace.blocked or 0, blocked and pace.reason or ''
  local facts = { lane, ready, pace.taken, next_start, interval, most, capacity, block_end, burst, reason, since }
  for _, fact in ipairs(facts) do
    seen[#seen + 1] = fact
  end
end
return seen
