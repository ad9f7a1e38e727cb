-- End the session, and release what it holds.
-- ARGV  6 '': now, else: microseconds for which it goes on without a caller, 7 the process, if nobody waits in it
-- answers  nothing; AGAIN while it holds tasks
--#include begin
call('HDEL', M .. ':waiting', ARGV[7])
if ARGV[6] ~= '' then
  local ends, lease = now + ARGV[6], tonumber(call('ZSCORE', M .. ':leases', ARGV[2]) or nil)
  -- Others may speak for the same session, with a longer lease; without an end it was this one's.
  if lease and lease < math.huge then ends = math.max(ends, lease) end
  call('ZADD', M .. ':leases', ends, ARGV[2])
  if not soonest or ends < soonest then
    soonest = ends
    call('HSET', M, 'soonest', ends)
  end
elseif release_of(ARGV[2], SOME) > SOME or not forget(ARGV[2]) then
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
--#include flush
