-- Renew the leases of sessions, unless they have expired. Remove some expired keys, also from a tube without other
-- calls.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the lease in microseconds, 2 '1': the caller listens to the tube, 3… the fields that mark the sessions as
--       alive
-- reply  the fields of sessions that have expired
local call = redis.call
local M = KEYS[1]
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
if call('HEXISTS', M, 'born') == 0 then return redis.error_reply('TUBEGONE there is no such tube') end
call('HDEL', M, '')
local expired = {}
for n = 3, #ARGV do
  local ends = call('ZSCORE', M .. ':leases', ARGV[n])
  if ends and tonumber(ends) > now then
    -- Another process may share the session, with a longer lease.
    call('ZADD', M .. ':leases', 'GT', now + ARGV[1], ARGV[n])
  else
    expired[#expired + 1] = ARGV[n]
  end
end
--#include shorten_leases
if ARGV[2] ~= '' then
  local ends = now + ARGV[1]
  --#include set_listening
end
-- Remove expired known keys for up to a millisecond, while a quarter of the fields have some. The clock chooses the
-- first cursor: HSCAN accepts a cursor that it did not return, and may then miss fields. The first record of a field
-- expires first. Any later write of a field also removes its expired records.
local cursor, stop = string.format('%.0f', now % 1048576), os.clock() + 0.0007
repeat
  local some = call('HSCAN', M .. ':known', cursor, 'COUNT', 100)
  local fields, old, changed = some[2], {}, {}
  for n = 1, #fields, 2 do
    local records, at = fields[n + 1], 1
    if struct.unpack('>I7', records, #records - 20) <= now then
      old[#old + 1] = fields[n]
    else
      while struct.unpack('>I7', records, at) <= now do at = at + 21 end
      if at > 1 then
        changed[#changed + 1] = fields[n]
        changed[#changed + 1] = string.sub(records, at)
      end
    end
  end
  if #old > 0 then call('HDEL', M .. ':known', unpack(old)) end
  if #changed > 0 then call('HSET', M .. ':known', unpack(changed)) end
  cursor = some[1]
until cursor == '0' or 8 * #old + 4 * #changed < #fields or os.clock() > stop
return expired
