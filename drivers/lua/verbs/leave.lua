-- End the session, and release its tasks.
-- ARGV  6 the microseconds until the session ends if no call renews it ('': end it now), 7 the process, if it has no
--       waiting callers
-- reply  nothing; AGAIN while the session has tasks
--#include begin
call('HDEL', M .. ':waiting', ARGV[7])
if ARGV[6] ~= '' then
  local moment, lease = now + ARGV[6], tonumber(call('ZSCORE', M .. ':leases', ARGV[2]) or nil)
  -- Another process may share the session, with a longer lease. A lease without an end was set by this process.
  if lease and lease < math.huge then moment = math.max(moment, lease) end
  call('ZADD', M .. ':leases', moment, ARGV[2])
  --#include note_due
elseif release_session(ARGV[2], SOME) > SOME or not remove_session(ARGV[2]) then
--#include flush
  return redis.error_reply('AGAIN call again')
end
--#include flush
