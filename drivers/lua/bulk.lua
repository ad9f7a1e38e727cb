-- What Spark and other bulk clients need: uploads of many tasks, writes that are all or nothing, streams that read in
-- batches, and scans without decoding. KEYS[1] is the meta hash of the tube.
local Call = require 'call'
local Engine = require 'engine'
local Entry = require 'entry'
local Bucket = require 'bucket'
local Done = require 'done'
local Lists = require 'lists'
local Many = require 'many'
local Ready = require 'ready'

local call = redis.call
local byte = string.byte
local sub = string.sub
local format = string.format

local Bulk = {}
-- Milliseconds after which an unused stream expires: a week.
local IDLE = 604800000

-- Uploads ------------------------------------------------------------------------------------------------------------------

-- Upload words for a put of many tasks, which follows after the last part. The list expires some time after that.
-- ARGV  1 the name of the list, 2 the number of earlier parts ('': remove the list), 3 milliseconds until it expires,
--       4 the next part: words in one string
function Bulk.upload_words(args)
  local list = Call.key .. ':staged:' .. args[1]
  if args[2] == '' then
    call('UNLINK', list)
    return
  end
  if call('EXISTS', Call.key) == 0 then return redis.error_reply(Call.TUBE_GONE) end
  local there = call('LLEN', list)
  -- Otherwise this part was uploaded before, and only the reply was lost.
  if there <= tonumber(args[2]) then
    if there < tonumber(args[2]) then return redis.error_reply('STAGEGONE the tasks uploaded before are gone') end
    call('RPUSH', list, args[4])
  end
  call('PEXPIRE', list, args[3])
end

-- Upload a chunk: words of tasks that a write puts later, all or none, in a list of its own.
-- ARGV  1 the write, 2 the chunk, 3 milliseconds until it expires, 4 words as in put_many, in one string
-- reply  the moment of creation of the tube, which identifies it among tubes of this name
function Bulk.write_stage(args)
  local born = call('HGET', Call.key, 'born')
  if not born then return redis.error_reply(Call.TUBE_GONE) end
  local chunks, list = Call.key .. ':chunks:' .. args[1], Call.key .. ':staged:' .. args[2]
  -- The caller continues a write that was aborted.
  if call('SISMEMBER', chunks, '!') == 1 then return redis.error_reply('ABORTED the write was given up') end
  -- If the chunk exists, only the reply was lost.
  if call('EXISTS', list) == 0 then call('RPUSH', list, args[4]) end
  call('PEXPIRE', list, args[3])
  call('SADD', chunks, args[2])
  call('PEXPIRE', chunks, args[3])
  return born
end

-- Extend the expiry of uploaded chunks, because their write is about to be sealed.
-- ARGV  1 milliseconds, 2… chunks; at most 1000
-- reply  the number of missing chunks
function Bulk.write_keep(args)
  local missing = 0
  for n = 2, #args do
    if call('PEXPIRE', Call.key .. ':staged:' .. args[n], args[1]) == 0 then missing = missing + 1 end
  end
  return missing
end

-- Seal a write: fix its chunks. From now on all of them are put, by this writer or by another one that continues it.
-- ARGV  1 the writer, 2 the number of the write, 3 its chunks: for each its name, its number of tasks and of words, '1'
--       if they have keys, its tube and the moment of creation of that, 4 the number of missing chunks, 5 milliseconds for which the seal is remembered, 6 the
--       moment of creation of the tube for which they were uploaded ('': no chunks)
-- reply  the number of a write and its chunks: of this write, or of an earlier one that is not done; nil: the write is
--        done
function Bulk.write_seal(args)
  local write = Call.key .. ':written:' .. args[1]
  local born = call('HGET', Call.key, 'born')
  if not born then return redis.error_reply(Call.TUBE_GONE) end
  if call('HGET', write, 'born') ~= born then call('UNLINK', write) end
  local last, number, chunks = unpack(call('HMGET', write, 'last', 'number', 'chunks'))
  if number then return number .. ' ' .. chunks end
  if last and tonumber(last) >= tonumber(args[2]) then return end
  if args[6] ~= '' and args[6] ~= born then return redis.error_reply('STAGEGONE the tube was dropped and made again') end
  if args[4] ~= '0' then return redis.error_reply('STAGEGONE the uploaded tasks are gone') end
  call('HSET', write, 'born', born, 'number', args[2], 'chunks', args[3])
  call('PEXPIRE', write, args[5])
  call('ZADD', Call.keys.sealed, call('TIME')[1], args[1])
  return args[2] .. ' ' .. args[3]
end

-- Record that a write has put all its tasks.
-- ARGV  1 the writer, 2 the number of the write, 3 milliseconds for which the record is kept ('': no record)
-- reply  1; 0: the write is unknown
function Bulk.write_done(args)
  local write = Call.key .. ':written:' .. args[1]
  local number, last = unpack(call('HMGET', write, 'number', 'last'))
  if number ~= args[2] then return last and tonumber(last) >= tonumber(args[2]) and 1 or 0 end
  call('ZREM', Call.keys.sealed, args[1])
  if args[3] == '' then
    call('UNLINK', write)
    return 1
  end
  call('HDEL', write, 'number', 'chunks')
  call('HSET', write, 'last', args[2])
  call('PEXPIRE', write, args[3])
  return 1
end

-- List writes that were sealed a while ago, and are not done.
-- ARGV  1 the minimum age in seconds
-- reply  for each write its writer, its number and its chunks
function Bulk.write_others(args)
  local sealed, found, now = Call.keys.sealed, {}, call('TIME')[1]
  local names = call('ZRANGEBYSCORE', sealed, '-inf', now - args[1], 'LIMIT', 0, 10)
  -- These writes were sealed in the future: the clock has been set back since then.
  if #names == 0 then names = call('ZRANGEBYSCORE', sealed, '(' .. now, '+inf', 'LIMIT', 0, 10) end
  for _, name in ipairs(names) do
    local number, chunks = unpack(call('HMGET', Call.key .. ':written:' .. name, 'number', 'chunks'))
    if number then
      found[#found + 1], found[#found + 2], found[#found + 3] = name, number, chunks
    else
      call('ZREM', sealed, name)
    end
  end
  return found
end

-- Remove the uploaded chunks of a write, except for chunks whose expiry was extended: their write may be sealed.
-- ARGV  1 the write, 2 milliseconds for which it is remembered that the write was aborted ('': it was not), 3 the usual
--       expiry of a chunk in milliseconds ('': remove all chunks, because all puts of the write are done)
-- reply  the number of chunks that are left to remove
function Bulk.write_clean(args)
  local chunks = Call.key .. ':chunks:' .. args[1]
  if args[2] ~= '' then
    call('SADD', chunks, '!')
    call('PEXPIRE', chunks, args[2])
  end
  for _, chunk in ipairs(call('SRANDMEMBER', chunks, 100)) do
    if chunk ~= '!' then
      local list = Call.key .. ':staged:' .. chunk
      if args[3] == '' or call('PTTL', list) <= tonumber(args[3]) then call('UNLINK', list) end
      call('SREM', chunks, chunk)
    end
  end
  return call('SCARD', chunks) - call('SISMEMBER', chunks, '!')
end

-- Streams ------------------------------------------------------------------------------------------------------------------

-- A stream is a hash ':stream:NAME': its epoch (the last reader that has opened it), its first batch that is not done,
-- its last one, the number of chunks of each batch, and each chunk: ids, ':', attempts, ':', numbers of the takes.

local function stream_key(name)
  return Call.key .. ':stream:' .. name
end

local function skipped_key(name)
  return Call.key .. ':skipped:' .. name
end

-- Return the key of a stream; or nil and an error reply unless the caller is the last reader that has opened it.
local function check_stream(name, epoch)
  local stream = stream_key(name)
  if call('HGET', stream, 'epoch') ~= epoch then
    return nil, redis.error_reply('FENCED another reader continues this stream')
  end
  call('PEXPIRE', stream, IDLE)
  return stream
end

-- Store how many chunks of a batch are left. Without one the batch ends, and `edge`, the first or the last batch of the
-- stream, becomes `number`.
local function set_left(stream, batch, left, edge, number)
  if left > 0 then return call('HSET', stream, batch, left) end
  call('HDEL', stream, batch, batch .. '.by')
  call('HSET', stream, edge, number)
end

-- Join numbers into one string; a single number if all are equal.
local function joined(numbers)
  for n = 2, #numbers do
    if numbers[n] ~= numbers[1] then return table.concat(numbers, ' ') end
  end
  return numbers[1] or ''
end

local function encode_chunk(ids, attempts, takes)
  return table.concat(ids, ' ') .. ':' .. joined(attempts) .. ':' .. joined(takes)
end

-- Return the numbers of a chunk for its `size` tasks: a single number applies to all.
local function numbers_of(words, size)
  local numbers = {}
  for number in string.gmatch(words, '%d+') do numbers[#numbers + 1] = number end
  for n = 2, #numbers == 1 and size or 0 do numbers[n] = words end
  return numbers
end

-- Return the ids of a chunk, their attempts, and the takes by which the stream holds them.
local function decode_chunk(chunk)
  local ids, attempts, takes = string.match(chunk, '(.*):(.*):(.*)')
  local named = numbers_of(ids, 1)
  return named, numbers_of(attempts, #named), numbers_of(takes, #named)
end

-- Continue a stream: its earlier reader is fenced off.
-- ARGV  6 its name
-- reply  its epoch, its first batch that is not done, its last batch that was taken, and the moment when the tube was
--        created, in one string
function Bulk.stream_open(args)
  local stream = stream_key(args[6])
  -- Remove a stream that belongs to an earlier tube of this name.
  if call('HGET', stream, 'born') ~= Call.born then
    call('UNLINK', stream, skipped_key(args[6]))
    call('HSET', stream, 'born', Call.born, 'first', 1, 'last', 0)
  end
  local known, first, last = unpack(call('HMGET', stream, 'epoch', 'first', 'last'))
  -- The number of the call makes the epoch unique, even if the server lost writes or its clock was set back.
  local epoch = format('%.0f.%s', math.max(Call.now, string.match(known or '0', '%d+') + 1), args[4])
  call('HSET', stream, 'epoch', epoch)
  call('PEXPIRE', stream, IDLE)
  local result = epoch .. ' ' .. first .. ' ' .. last .. ' ' .. Call.born
  return result, result
end

-- Take tasks for a stream, and record them. Their ttr does not run: the lease of the session replaces it.
-- ARGV  6 the stream, 7 its epoch, 8 the batch, 9 the number of the chunk in it, 10 the maximum number of tasks (0:
--       only return a chunk that was recorded before), 11 a size limit in bytes, or ''
-- reply  the record of the chunk; nil if no task was taken. Another call for the same chunk returns the same record
function Bulk.stream_take(args)
  local stream, fenced = check_stream(args[6], args[7])
  if not stream then return fenced end
  local field = args[8] .. '.' .. args[9]
  local chunk = call('HGET', stream, field)
  if chunk then return chunk end
  local limit, room = tonumber(args[10]), tonumber(args[11]) or math.huge
  if limit == 0 then return false end
  -- Ready tasks may belong to an unfinished batch whose lease has expired. Leave them to that batch.
  local first, last = unpack(call('HMGET', stream, 'first', 'last'))
  for number = math.max(first, last - 1), last do
    local owner = call('HGET', stream, format('%.0f.by', number))
    if owner and tonumber(owner) ~= Call.session then return false end
  end
  local tasks, ids, attempts, _, _, stuck = Many.take_some(limit, room, true, true)
  if tasks then
    if #tasks == 0 and stuck and not Call.rate_limits then return redis.error_reply('AGAIN call again') end
    ids, attempts = {}, {}
    for n = 1, #tasks do ids[n], attempts[n] = tasks[n].id, tasks[n].attempts end
  end
  if #ids == 0 then return false end
  chunk = encode_chunk(ids, attempts, { format('%d', Call.take) })
  -- The numbers of batches may have gaps: skip the missing ones.
  if first - last > 0 then call('HSET', stream, 'first', args[8]) end
  call('HSET', stream, field, chunk, args[8], args[9] + 1, args[8] .. '.by', Call.session, 'last', args[8])
  return chunk, chunk
end

-- Take tasks of a chunk again after their lease expired, unless another session has taken them since. Drop the other
-- tasks from the chunk, and those that were left out when it was read: the sink may have been written without them.
-- ARGV  6 the stream, 7 its epoch, 8 the batch, 9 the number of the chunk in it, 10 '1': the expired lease counts as an
--       attempt of each task that is taken again, and a task without further attempts is buried
-- reply  the number of tasks that the chunk lost, ' ', the new record of the chunk; nil: the chunk does not exist
function Bulk.stream_retake(args)
  local stream, fenced = check_stream(args[6], args[7])
  if not stream then return fenced end
  if Call.replayed then return Call.replayed end
  local plan, K = Call.plan, Call.keys
  local field = args[8] .. '.' .. args[9]
  local chunk = call('HGET', stream, field)
  if not chunk then return false end
  local named, attempts, expected = decode_chunk(chunk)
  local ids, tries, takes, changed = {}, {}, {}, false
  local scores = Lists.collect('ZMSCORE', K.taken, named)
  for n = 1, #named do
    local by, take = attempts[n], expected[n]
    if scores[n] ~= format('%.0f', Call.session * Call.TAKES + take) then
      changed, by = true, false
      local task, before = Entry.find(named[n]), attempts[n] - 1
      local left_out = call('SREM', skipped_key(args[6]), named[n] .. '.' .. take) == 1
      local may = not left_out and task and task.state == 'r' and task.attempts == before
      may = may and Bucket.tokens() > 0
      if may and args[10] == '1' then
        task.attempts = task.attempts + 1
        if Entry.is_last(task) then
          may, task.reason = false, '00max_attempts: session'
          Engine.move(task, 'bury')
        end
      end
      if plan.lane then
        -- As in any take, the lane must be free, and the task must be its first one.
        may = may and call('ZREM', K.offers, Ready.place(task)) == 1
      elseif may then
        Call.plan.index.pull(task)
      end
      if may then
        task.owner = Call.session
        if args[10] == '1' then Entry.write(task) end
        Engine.move(task, 'take')
        by, take = task.attempts, format('%d', Call.take)
      end
    end
    if by then ids[#ids + 1], tries[#tries + 1], takes[#takes + 1] = named[n], by, take end
  end
  if not changed then return '0 ' .. chunk end
  chunk = encode_chunk(ids, tries, takes)
  call('HSET', stream, field, chunk, args[8] .. '.by', Call.session)
  local result = format('%d ', #named - #ids) .. chunk
  return result, result
end

-- Ack the tasks of the last chunk of a batch. A task whose lease has expired is removed as well if no other session has
-- taken it since (its attempts are then as before the take) and it was not left out when the batch was read. All
-- earlier batches are done, too: if the server lost their acks and still has batches of them, the first one is acked
-- first.
-- ARGV  6 the stream, 7 its epoch, 8 the batch
-- reply  the minimum number of remaining chunks, ' ', the number of done tasks
function Bulk.stream_ack(args)
  local stream, fenced = check_stream(args[6], args[7])
  if not stream then return fenced end
  local batch, first = args[8], call('HGET', stream, 'first')
  if first and first + 0 < batch + 0 and call('HEXISTS', stream, first) == 1 then batch = first end
  local left, count = (call('HGET', stream, batch) or 0) - 1, 0
  local field = batch .. '.' .. left
  local chunk = left >= 0 and call('HGET', stream, field)
  -- The usual chunk: one take has taken all its tasks, and the stream still holds them.
  local listed, take = string.match(chunk or '', '^(.*):.*:(%d+)$')
  local whole = listed and numbers_of(listed, 1)
  if whole and Many.ack_whole(whole, take) then
    count = #whole
    call('HDEL', stream, field)
  elseif chunk then
    local named, attempts, expected = decode_chunk(chunk)
    local done = Many.ack_some(named, expected)
    local skipped, ids, tries, takes = skipped_key(args[6]), {}, {}, {}
    for n = 1, #named do
      if done[n] == '1' then
        count = count + 1
      elseif n > 1 and Call.is_spent() then
        ids[#ids + 1], tries[#tries + 1], takes[#takes + 1] = named[n], attempts[n], expected[n]
      elseif call('SREM', skipped, named[n] .. '.' .. expected[n]) == 0 then
        local task = Entry.find(named[n])
        if task and task.state == 'r' and task.attempts == attempts[n] - 1 then
          Engine.move(task, 'delete')
          count = count + 1
        end
      end
    end
    call('HDEL', stream, field)
    if #ids > 0 then
      call('HSET', stream, field, encode_chunk(ids, tries, takes))
      left = left + 1
    end
  end
  set_left(stream, batch, left, 'first', batch + 1)
  local result = format('%d %d', math.max(left, 0) + (batch ~= args[8] and 1 or 0), count)
  return result, result
end

-- Return the tasks of the last chunk of the last batch, which was not delivered, as if they had not been taken.
-- ARGV  6 the stream, 7 its epoch, 8 the batch
-- reply  the number of remaining chunks
function Bulk.stream_return(args)
  local stream, fenced = check_stream(args[6], args[7])
  if not stream then return fenced end
  local batch = args[8]
  local left = (call('HGET', stream, batch) or 0) - 1
  local field = batch .. '.' .. left
  local chunk = left >= 0 and call('HGET', stream, field)
  if chunk then
    local ids, attempts, takes = decode_chunk(chunk)
    repeat
      local task = Entry.find_held(ids[#ids], takes[#ids])
      if task then
        Bucket.undo_start(task)
        task.attempts = task.attempts - 1
        Engine.move(task, 'decline')
      end
      ids[#ids], attempts[#ids], takes[#ids] = nil, nil, nil
    until #ids == 0 or Call.is_spent()
    if #ids == 0 then
      call('HDEL', stream, field)
    else
      call('HSET', stream, field, encode_chunk(ids, attempts, takes))
      left = left + 1
    end
  end
  set_left(stream, batch, left, 'last', batch - 1)
  local result = format('%d', math.max(left, 0))
  return result, result
end

-- Record tasks of a stream that were not delivered because they had changed since the take: its acks skip them.
-- ARGV  1 the stream, 2 its epoch, 3 milliseconds until the record expires, 4… for each task its id, '.', and the
--       number of the take; at most 1000
function Bulk.stream_skip(args)
  if call('HGET', stream_key(args[1]), 'epoch') ~= args[2] then
    return redis.error_reply('FENCED another reader continues this stream')
  end
  local skipped = skipped_key(args[1])
  call('SADD', skipped, unpack(args, 4))
  call('PEXPIRE', skipped, args[3])
end

-- Record how many tasks Spark runs at a time: executors know it, and the driver of a stream needs it.
-- ARGV  1 the stream, 2 its epoch, 3 the number
function Bulk.stream_slots(args)
  local stream = stream_key(args[1])
  if call('HGET', stream, 'epoch') == args[2] then call('HSET', stream, 'slots', args[3]) end
end

-- Scans --------------------------------------------------------------------------------------------------------------------

-- Count the tasks, and return the range of their ids.
-- reply  {the number of tasks, a lower bound of their ids, the next id}; nil: the tube does not exist
function Bulk.extent()
  local K = Call.keys
  local oldest, next_id = unpack(call('HMGET', Call.key, 'oldest', 'next'))
  if not next_id then return nil end
  local lowest = tonumber(oldest or 0)
  -- Ready tasks that are ordered only by id are in a list, in this order.
  local listed = call('TYPE', K.ready).ok == 'list'
  if listed and call('EXISTS', K.back, K.buried, K.due) == 0 and call('ZCARD', K.taken) <= 1000 then
    lowest = tonumber(call('LINDEX', K.ready, 0))
    for _, id in ipairs(call('ZRANGE', K.taken, 0, -1)) do lowest = math.min(lowest, tonumber(id)) end
  end
  return { call('HLEN', K.tasks), lowest, tonumber(next_id) }
end

-- List the ids of tasks by a scan: each task that exists during the whole scan, some of them twice.
-- ARGV  1 the cursor ('0': the beginning), 2 about how many ids, 3 the key: tasks, taken, due, buried or ended
-- reply  {the next cursor, ids in one string}; of 'buried' the id in the last 6 bytes of each place
function Bulk.scan_ids(args)
  local part, ids = args[3], {}
  local key = Call.keys[part]
  if part == 'tasks' then
    local cursor, names = Lists.scan_fields(key, args[1], args[2])
    return { cursor, table.concat(names, ' ') }
  end
  local page = call('ZSCAN', key, args[1], 'COUNT', args[2])
  for n = 1, #page[2], 2 do
    local at = page[2][n]
    ids[#ids + 1] = part == 'taken' and at or format('%.0f', struct.unpack('>I6', at, #at - 5))
  end
  return { page[1], table.concat(ids, ' ') }
end

-- Return the position after the fields that the flags announce; `sizes`: their sizes in bytes, as in entry.lua; -1: a
-- text.
local function skip(flags, value, at, sizes)
  for bit, size in ipairs(sizes) do
    if flags % 2 ^ bit >= 2 ^ (bit - 1) then
      if size < 0 then
        local length = byte(value, at)
        at = length < 255 and at + 1 + length or at + 5 + struct.unpack('>I4', value, at + 1)
      else
        at = at + size
      end
    end
  end
  return at
end

local FIRST_SIZES, MORE_SIZES = { 0, 0, 3, 4, 7, 7, -1 }, { 3, -1, 7, -1, 0, -1, 7, 16 }

-- Return the position of the data of a task that is stored from `begin` on. It is faster than `Entry.read`.
local function data_at(value, begin)
  local flags = byte(value, begin)
  local at = skip(flags, value, begin + 8, FIRST_SIZES)
  return flags < 128 and at or skip(byte(value, at), value, at + 1, MORE_SIZES)
end

-- Add the scores of some members of a sorted set, if it exists.
local function add_scores(key, members, found)
  if call('EXISTS', key) == 0 then return end
  for _, score in ipairs(Lists.collect('ZMSCORE', key, members)) do found[#found + 1] = score end
end

-- Read tasks without their data, or kept done tasks.
-- ARGV  1 'tasks' or 'done', 2 '1': done tasks with their data, 3 and 4 two moments: skip done tasks unless they ended
--       after the first and not after the second, 5… ids, a bounded number
-- reply  {the number of ids that were read; the bytes before the data of each, nil: it does not exist; the score of
--        each in ':taken', if any task is taken; the due time of each, if any task has one}; nil: the tube does not
--        exist
function Bulk.task_headers(args)
  local K = Call.keys
  if call('EXISTS', Call.key) == 0 then return nil end
  local part, are_whole, since, to, now = args[1], args[2] == '1', tonumber(args[3]), tonumber(args[4]), Call.time()
  -- Return the position of the task in the record of a done task; false: outside of the requested time, or expired.
  local function kept_at(record)
    local ended, ends, _, at = Done.read(record)
    return ends > now and ended > since and ended <= to and at
  end
  local heads, taken, due, size, looked, count = {}, {}, {}, 0, 0, #args - 4
  while looked < count and size < Call.BYTES do
    looked = looked + 1
    local value = call('HGET', K[part], args[looked + 4])
    -- An unreadable task is returned unchanged.
    local is_read, begin = true, 1
    if value and part == 'done' then
      is_read, begin = pcall(kept_at, value)
      if not begin then value = false end
    end
    if value then
      size = size + #value
      local at = is_read and begin + 8
      if is_read and (byte(value, begin) or 0) >= 4 then is_read, at = pcall(data_at, value, begin) end
      if is_read and not are_whole then value = sub(value, 1, at - 1) end
    end
    heads[looked] = value
  end
  if part == 'tasks' then
    local ids, members = {}, {}
    for n = 1, looked do ids[n], members[n] = args[n + 4], struct.pack('>I6', args[n + 4]) end
    add_scores(K.taken, ids, taken)
    add_scores(K.due, members, due)
  end
  return { looked, heads, taken, due }
end

return Bulk
