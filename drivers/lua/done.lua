-- Done tasks that are kept, as in done.py. The hash ':done' has a record by id: why the task ended (a ack, d delete,
-- t ttl, c cancel; 1 byte), when it ended and until when it is kept (7 bytes each), its attempts (3), 1 and its result as
-- a text or 0, and the task as it was stored. The sorted set ':ended' has the ids in 6 bytes, by the moments until which
-- they are kept.
local Call = require 'call'
local Entry = require 'entry'
local Lists = require 'lists'
local Pending = require 'pending'

local call = redis.call
local pack = struct.pack
local unpack_struct = struct.unpack
local sub = string.sub

local Done = {}
-- The most expired or superfluous tasks that one end of a task removes.
local BATCH = 50

-- Remove kept tasks by their ids in 6 bytes.
function Done.forget(ids)
  local K = Call.keys
  for n = 1, #ids do
    call('HDEL', K.done, string.format('%.0f', unpack_struct('>I6', ids[n])))
    call('ZREM', K.ended, ids[n])
  end
end

-- Remove the oldest done tasks in excess of the limit of the tube, at most `limit`. Return the excess before.
local function forget_oldest(limit)
  local most, ended = Call.plan.keeps_most, Call.keys.ended
  local over = most > 0 and call('ZCARD', ended) - most or 0
  if over > 0 then Done.forget(call('ZRANGE', ended, 0, math.min(over, limit) - 1)) end
  return over
end

-- Keep a task that ends now, and forget some that have expired.
function Done.add(task, why)
  local K, now = Call.keys, Call.now
  local ends = now + task.keep_done
  local result = task.result and pack('>I1', 1) .. Entry.text(task.result) or pack('>I1', 0)
  local record = pack('>c1I7I7I3', why, now, ends, task.attempts) .. result .. task.value
  task.record = record
  Done.forget(call('ZRANGEBYSCORE', K.ended, '-inf', now, 'LIMIT', 0, BATCH))
  call('HSET', K.done, task.id, record)
  call('ZADD', K.ended, ends, pack('>I6', task.id))
  forget_oldest(BATCH)
  -- If the tube is no longer used, both keys expire.
  local stays = math.max(math.ceil(task.keep_done / 1000), 1000)
  if Call.args[5] == '' and call('PTTL', K.ended) < stays then
    call('PEXPIRE', K.done, 2 * stays)
    call('PEXPIRE', K.ended, 2 * stays)
  end
end

-- Return when a kept task ended, until when it is kept, its attempts, and the position of the stored task, from its
-- record, which begins at `begin`.
function Done.read(record, begin)
  local _, ended, ends, attempts, has, at = unpack_struct('>c1I7I7I3I1', record, begin or 1)
  if has == 1 then _, at = Entry.text_at(record, at) end
  return ended, ends, attempts, at
end

-- Return the facts of a done task, as `Entry.encode` does for a living one (with 1 as its take), followed by its record.
-- nil: it is not kept. `expected`: as for `Entry.find_expected`.
function Done.encode(id, expected)
  local record = Pending.get(Call.keys.done, id)
  if not record then return nil end
  local _, ends, attempts, at = Done.read(record)
  local kind = sub(expected, 1, 1)
  if ends <= Call.now or kind == 't' then return nil end
  if kind == 'c' and unpack_struct('>I7', record, at + 1) ~= sub(expected, 2) + 0 then return nil end
  return pack('>I8c1I4I4i8', id, '-', attempts, 1, -1) .. record
end

-- List kept done tasks; the task that expires last comes first.
-- ARGV  6 the maximum number, bounded, 7 the id of the task after which to begin ('': none), 8 its expiry ('': unknown),
--       9 a filter
-- reply  {the id and the expiry after which to continue; '' twice: the end}, each task as the filter says, and the id of
--        the next put
function Done.ended(args)
  local ended = Call.keys.ended
  local last = call('ZCARD', ended)
  if args[7] ~= '' then
    local moment, member = args[8], pack('>I6', args[7])
    if moment == '' then
      moment = call('ZSCORE', ended, member)
      if not moment or moment + 0 <= Call.now then return redis.error_reply('NOTFOUND there is no such task') end
    end
    last = Lists.count_before(ended, moment, member)
  end
  local first = math.max(call('ZCOUNT', ended, '-inf', Call.now), last - args[6])
  local some = last > first and call('ZRANGE', ended, first, last - 1, 'WITHSCORES') or {}
  local found, size, accept, weight = { '', '' }, 0, require('reads').filter_of(args[9])
  for n = #some - 1, 1, -2 do
    local id = string.format('%.0f', unpack_struct('>I6', some[n]))
    local kept = Done.encode(id, '')
    if kept then
      local _, _, attempts, at = Done.read(kept, 26)
      local task = Entry.read(id, sub(kept, at))
      task.state, task.attempts = '-', attempts
      found[#found + 1] = accept(task, kept)
      size = size + #kept * weight
    end
    if n == 1 or size >= Call.BYTES then
      if n > 1 or #some == 2 * args[6] then found[1], found[2] = id, some[n + 1] end
      break
    end
  end
  found[#found + 1] = Call.next
  return found
end

-- Remove the oldest done tasks in excess of the limit of the tube.
-- ARGV  6 the maximum per call, bounded
-- reply  the number of done tasks that are left to remove
function Done.trim_done(args)
  return math.max(forget_oldest(args[6]) - args[6], 0)
end

return Done
