-- Take the next task.
-- ARGV  6 how many callers in the process wait if no task can be taken ('': none), 7 the process, 8 '', 9 as for
--       take_task
-- reply  the task as `encode_task` encodes it; if no task can be taken, the next due time (0: none)
--#include begin
local id
if replayed then
--#slow
  local task = #replayed > 0 and find_held(unpack_struct('>I8', replayed), this_take)
  if task then return encode_held(task) end
  -- Take nothing: a waiter sends its next take itself, and this request may come from an abandoned connection.
  if (ARGV[6] or '') ~= '' then id = false end
--#fast
end
if id == nil then
--#include pop
--#if LIST
  if id == nil then
--#include flush
    return redis.error_reply('AGAIN call again')
  end
--#end
end
if not id then
  if (ARGV[6] or '') ~= '' then
--#slow
    local watched = WATCHED
    if not last then store_slot() end
    call('HSET', M, ARGV[3], ARGV[4] .. ':', 'waiting', watched)
    call('HSET', M .. ':waiting', ARGV[7], string.format('%s %.0f', ARGV[6], watched))
--#fast
  end
--#include flush
  return soonest or 0
end
--#if TIMED
if ARGV[9] then
--#slow
  local task = read(id, call('HGET', M .. ':tasks', id))
--#include start
--#fast
end
--#end
--#include take_popped
--#done result
return result .. stored
