-- Take tasks of a chunk again after their lease expired, unless another session has taken them since. Drop the other
-- tasks from the chunk, and those that were left out when it was read: the sink may have been written without them.
-- ARGV  6 the stream, 7 its epoch, 8 the batch, 9 the number of the chunk in it, 10 '1': the expired lease counts as an
--       attempt of each task that is taken again, and a task without further attempts is buried
-- reply  the number of tasks that the chunk lost, ' ', the new record of the chunk; nil: the chunk does not exist
--#include begin
--#include check_stream
if replayed then return replayed end
local field = ARGV[8] .. '.' .. ARGV[9]
--#include stream_chunk
local ids, tries, takes, changed = {}, {}, {}, false
local scores = all_of('ZMSCORE', M .. ':taken', named)
for n = 1, #named do
  local by, take = attempts[n], expected[n]
  if scores[n] ~= string.format('%.0f', ARGV[1] * TAKES + take) then
    changed, by = true, false
    local before = attempts[n] - 1
    local task, due = find(named[n])
    local left_out = call('SREM', M .. ':skipped:' .. ARGV[6], named[n] .. '.' .. take) == 1
    local may = not left_out and task and task.state == 'r' and task.attempts == before
    may = may and tokens() > 0  --#if RATED
    if may and ARGV[10] == '1' then
      task.attempts = task.attempts + 1
      if is_last(task) then
        may, task.reason = false, '00max_attempts: session'
--#move bury r
      end
    end
--#if LANE
    -- As in any take, the lane must be free, and the task must be its first one.
    may = may and call('ZREM', M .. ':offers', place(task)) == 1
--#else
    if may then pull(task) end
--#end
    if may then
      task.owner = ARGV[1]
      if ARGV[10] == '1' then write(task) end
--#move take r
      by, take = task.attempts, string.format('%d', this_take)
    end
  end
  if by then ids[#ids + 1], tries[#tries + 1], takes[#takes + 1] = named[n], by, take end
end
if not changed then
--#include flush
  return '0 ' .. chunk
end
chunk = encode_chunk(ids, tries, takes)
call('HSET', stream, field, chunk, ARGV[8] .. '.by', ARGV[1])
local result = string.format('%d ', #named - #ids) .. chunk
--#done result
return result
