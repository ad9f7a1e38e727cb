-- Take tasks for a stream, and record them. Their ttr does not run: the lease of the session replaces it.
-- ARGV  6 the stream, 7 its epoch, 8 the batch, 9 the number of the chunk in it, 10 the maximum number of tasks (0:
--       only return a chunk that was recorded before), 11 a size limit in bytes, or ''
-- reply  the record of the chunk, see check_stream.lua; nil if no task was taken. Another call for the same chunk
--        returns the same record
--#include begin
--#include check_stream
local field = ARGV[8] .. '.' .. ARGV[9]
local chunk = call('HGET', stream, field)
if chunk then
--#include flush
  return chunk
end
local limit, room, leased, bare = tonumber(ARGV[10]), tonumber(ARGV[11]) or math.huge, true, true
if limit == 0 then
--#include flush
  return false
end
-- Ready tasks may belong to an unfinished batch whose lease has expired. Leave them to that batch.
local known = call('HMGET', stream, 'first', 'last')
for number = math.max(known[1], known[2] - 1), known[2] do
  local owner = call('HGET', stream, string.format('%.0f.by', number))
  if owner and owner ~= ARGV[1] then
--#include flush
    return false
  end
end
--#include take_some
for n = 1, #tasks do ids[n], attempts[n] = tasks[n].id, tasks[n].attempts end
if #ids == 0 then
--#include flush
  return false
end
chunk = encode_chunk(ids, attempts, { string.format('%d', this_take) })
-- The numbers of batches may have gaps: skip the missing ones.
if known[1] - known[2] > 0 then call('HSET', stream, 'first', ARGV[8]) end
call('HSET', stream, field, chunk, ARGV[8], ARGV[9] + 1, ARGV[8] .. '.by', ARGV[1], 'last', ARGV[8])
--#done chunk
return chunk
