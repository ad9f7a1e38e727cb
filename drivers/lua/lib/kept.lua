-- Done tasks that are kept. ':done' has of each, by id: a byte that says why it ended (a ack, d delete, t ttl), the moments of
-- its end and of the end of its keeping (7 bytes each), its attempts (3), 1 and its result as a text or 0, and the task as it
-- was stored. ':ended' has the ids in 6 bytes, by the moment at which they are forgotten.
--#if KEEPS
local function forget_done(ids)
  for n = 1, #ids do
    call('HDEL', M .. ':done', string.format('%.0f', unpack_struct('>I6', ids[n])))
    call('ZREM', M .. ':ended', ids[n])
  end
end

-- A task ends now. Those that are over are forgotten, some with each that comes.
local function keep_task(task, why)
  local ends = now + task.keep_done
  local result = task.result and pack('>I1', 1) .. text(task.result) or pack('>I1', 0)
  local record = pack('>c1I7I7I3', why, now, ends, task.attempts) .. result .. task.value
  task.record = record
  forget_done(call('ZRANGEBYSCORE', M .. ':ended', '-inf', now, 'LIMIT', 0, 50))
  call('HSET', M .. ':done', task.id, record)
  call('ZADD', M .. ':ended', ends, pack('>I6', task.id))
--#if KEEPS_SOME
  local over = call('ZCARD', M .. ':ended') - KEPT_MOST
  if over > 0 then forget_done(call('ZRANGE', M .. ':ended', 0, math.min(over, 50) - 1)) end
--#end
  -- Where nobody uses the tube any more both go by themselves.
  local stays = math.max(math.ceil(task.keep_done / 1000), 1000)
  if ARGV[5] == '' and call('PTTL', M .. ':ended') < stays then
    call('PEXPIRE', M .. ':done', 2 * stays)
    call('PEXPIRE', M .. ':ended', 2 * stays)
  end
end

-- What a caller is told of a done task: as `shown` of a living one, with 1 as its take; then the record. nil: it is not kept.
-- `meant`: as for `is_meant`.
local function told_done(id, meant)
  local record = call('HGET', M .. ':done', id)
  if not record then return nil end
  local _, _, ends, attempts, has, at = unpack_struct('>c1I7I7I3I1', record)
  if ends <= now then return nil end
  if has == 1 then _, at = text_at(record, at) end
  if sub(meant, 1, 1) == 't' then return nil end
  if sub(meant, 1, 1) == 'c' and unpack_struct('>I7', record, at + 1) ~= sub(meant, 2) + 0 then return nil end
  return pack('>I8c1I4I4i8', id, '-', attempts, 1, -1) .. record
end

-- How many stand in ':ended' before this moment and id.
local function ended_before(moment, id)
  local first, last = call('ZCOUNT', M .. ':ended', '-inf', '(' .. moment), call('ZCOUNT', M .. ':ended', '-inf', moment)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if call('ZRANGE', M .. ':ended', middle, middle)[1] < id then first = middle + 1 else last = middle end
  end
  return first
end
--#end
