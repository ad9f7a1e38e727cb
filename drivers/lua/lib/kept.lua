-- Done tasks that are kept. The hash ':done' has a record by id: why the task ended (a ack, d delete, t ttl, c cancel;
-- 1 byte), when it ended and until when it is kept (7 bytes each), its attempts (3), 1 and its result as a text or 0,
-- and the task as it was stored. The sorted set ':ended' has the ids in 6 bytes, by the moments until which they are
-- kept.
--#if KEEPS
local function forget_done(ids)
  for n = 1, #ids do
    call('HDEL', M .. ':done', string.format('%.0f', unpack_struct('>I6', ids[n])))
    call('ZREM', M .. ':ended', ids[n])
  end
end

-- Keep a task that ends now, and forget some that have expired.
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
  -- If the tube is no longer used, both keys expire.
  local stays = math.max(math.ceil(task.keep_done / 1000), 1000)
  if ARGV[5] == '' and call('PTTL', M .. ':ended') < stays then
    call('PEXPIRE', M .. ':done', 2 * stays)
    call('PEXPIRE', M .. ':ended', 2 * stays)
  end
end

-- Return the facts of a done task, as `encode_task` does for a living one (with 1 as its take), followed by its record.
-- nil: it is not kept. `expected`: as for `is_expected`.
local function encode_done(id, expected)
  local record = call('HGET', M .. ':done', id)
  if not record then return nil end
  local _, _, ends, attempts, has, at = unpack_struct('>c1I7I7I3I1', record)
  if ends <= now then return nil end
  if has == 1 then _, at = text_at(record, at) end
  if sub(expected, 1, 1) == 't' then return nil end
  if sub(expected, 1, 1) == 'c' and unpack_struct('>I7', record, at + 1) ~= sub(expected, 2) + 0 then return nil end
  return pack('>I8c1I4I4i8', id, '-', attempts, 1, -1) .. record
end

-- Return the task in the reply of `encode_done`.
local function done_task(id, reply)
  local attempts, has, at = unpack_struct('>I3I1', reply, 41)
  if has == 1 then at = select(2, text_at(reply, at)) end
  local task = read(id, sub(reply, at))
  task.state, task.attempts = '-', attempts
  return task
end

-- Return the number of entries of ':ended' before a moment and an id.
local function count_ended_before(moment, id)
  local first, last = call('ZCOUNT', M .. ':ended', '-inf', '(' .. moment), call('ZCOUNT', M .. ':ended', '-inf', moment)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if call('ZRANGE', M .. ':ended', middle, middle)[1] < id then first = middle + 1 else last = middle end
  end
  return first
end
--#end
