-- List kept done tasks; the task that expires last comes first.
-- ARGV  6 the maximum number, bounded, 7 the id of the task after which to begin ('': none), 8 its expiry ('': unknown),
--       9 a filter
-- reply  {the id and the expiry after which to continue; '' twice: the end}, each task as `filter_of` says, and
--       the id of the next put
--#include begin
--#include flush
--#if KEEPS
local last = call('ZCARD', M .. ':ended')
if ARGV[7] ~= '' then
  local moment, id = ARGV[8], pack('>I6', ARGV[7])
  if moment == '' then
    moment = call('ZSCORE', M .. ':ended', id)
    if not moment or moment + 0 <= now then return redis.error_reply('NOTFOUND there is no such task') end
  end
  last = count_ended_before(moment, id)
end
local first = math.max(call('ZCOUNT', M .. ':ended', '-inf', now), last - ARGV[6])
local some = last > first and call('ZRANGE', M .. ':ended', first, last - 1, 'WITHSCORES') or {}
local found, size, accept, weight = { '', '' }, 0, filter_of(ARGV[9])
for n = #some - 1, 1, -2 do
  local id = string.format('%.0f', unpack_struct('>I6', some[n]))
  local kept = encode_done(id, '')
  size = size + (kept and #kept * weight or 0)
  found[#found + 1] = kept and accept(done_task(id, kept), kept)
  if n == 1 or size >= BYTES then
    if n > 1 or #some == 2 * ARGV[6] then found[1], found[2] = id, some[n + 1] end
    break
  end
end
found[#found + 1] = META.next
return found
--#else
if ARGV[7] ~= '' and ARGV[8] == '' then return redis.error_reply('NOTFOUND there is no such task') end
return { '', '', META.next }
--#end
