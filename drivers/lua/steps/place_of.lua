-- Set `at` to the place of `task`, a string that sorts in the order of takes. It is the rank or the priority, if the
-- driver orders by one, followed by the id in 6 bytes.
-- in: task
-- out: at
local at = pack('>I6', NEWEST_FIRST and 281474976710655 - task.id or task.id)
--#if RANK
do
  local pri, created = task.pri or 0, task.created
  -- + 0 turns -0.0 into 0.0: they would sort differently.
  local rank = pack('>d', (function(id) return RANK_LUA end)(tonumber(task.id)) + 0)
  -- The bytes of a double sort like the number after its sign bit is flipped (for a negative number: all bits).
  local a, b, c, d, e, f, g, h = byte(rank, 1, 8)
  if a >= 128 then
    rank = string.char(255 - a, 255 - b, 255 - c, 255 - d, 255 - e, 255 - f, 255 - g, 255 - h)
  else
    rank = string.char(a + 128, b, c, d, e, f, g, h)
  end
  at = rank .. at
end
--#elif ORDER_PRI
-- The size of the priority in bytes, then the priority. This is short for the most frequent one, 0; each task has a
-- place.
local pri = GREATEST_FIRST and 4294967295 - (task.pri or 0) or task.pri or 0
if pri == 0 then
  at = '\0' .. at
else
  local size = pri < 256 and 1 or pri < 65536 and 2 or 4
  at = pack('>I1I' .. size, size, pri) .. at
end
--#end
