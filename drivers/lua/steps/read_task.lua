-- Set the fields of `task` from its stored form, task.value: lib/task.lua describes the format.
-- in: task
local flags = byte(task.value, 1)
if flags ~= 0 then
  local value, at = task.value, 9
  if flags % 2 >= 1 then task.state = '~' end
  if flags % 4 >= 2 then task.state = '!' end
  if flags % 8 >= 4 then task.attempts, at = unpack_struct('>I3', value, at) end
  if flags % 16 >= 8 then task.pri, at = unpack_struct('>I4', value, at) end  --#if PRI
--#if TIMED
  if flags % 32 >= 16 then task.ttl, at = unpack_struct('>I7', value, at) end
  if flags % 64 >= 32 then task.ttr, at = unpack_struct('>I7', value, at) end
--#end
--#if LANE
  if flags % 128 >= 64 then
    -- text_at inlined.
    local length = byte(value, at)
    if length < 255 then
      task.lane = sub(value, at + 1, at + length)
      at = at + 1 + length
    else
--#slow
      task.lane, at = text_at(value, at)
--#fast
    end
  end
--#end
  if flags >= 128 then
--#slow
    local more = byte(value, at)
    at = at + 1
    if more % 2 >= 1 then task.most, at = unpack_struct('>I3', value, at) end
    if more % 4 >= 2 then task.key, at = text_at(value, at) end
    if more % 8 >= 4 then task.key_ttl, at = unpack_struct('>I7', value, at) end
    if more % 16 >= 8 then task.reason, at = text_at(value, at) end
    task.replaces = more % 32 >= 16
    if more % 64 >= 32 then task.context, at = text_at(value, at) end
    if more % 128 >= 64 then task.keep_done, at = unpack_struct('>I7', value, at) end  --#if KEEPS
    if more >= 128 then task.past, at = sub(value, at, at + 15), at + 16 end
--#fast
  end
  task.body = at
end
