-- Renew the leases of sessions, unless they are over. Keys of a tube in which nobody puts are forgotten too.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the lease in microseconds, 2 '1': somebody listens to the tube, 3… the fields that say that the sessions live
-- answers  those that do not live any more
local call = redis.call
local M = KEYS[1]
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
if call('HEXISTS', M, 'born') == 0 then return redis.error_reply('TUBEGONE there is no such tube') end
call('HDEL', M, '')
local gone = {}
for n = 3, #ARGV do
  local ends = call('ZSCORE', M .. ':leases', ARGV[n])
  if ends and tonumber(ends) > now then
    -- Others may speak for the same session, with a longer lease.
    call('ZADD', M .. ':leases', 'GT', now + ARGV[1], ARGV[n])
  else
    gone[#gone + 1] = ARGV[n]
  end
end
--#include recall
if ARGV[2] ~= '' then
  local ends = now + ARGV[1]
  --#include heard
end
local limit = 1000
--#include forget_keys
return gone
