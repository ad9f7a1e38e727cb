-- Look at the next task to be taken.
-- reply  its priority and its id; '' if no task can be taken
--#include begin
--#if LIST
local id = pop()
if id then unpop({ id }, 1) end
--#else
local id = false
--#if RATED
if not (META.paused and META.paused + 0 > now) and tokens() > 0 then
--#else
if not (META.paused and META.paused + 0 > now) then
--#end
  local at = call('ZRANGE', M .. READY, 0, 0)[1]
  id = at and id_at(at) or false
end
--#end
--#include flush
if id == nil then return redis.error_reply('AGAIN call again') end
if not id then return '' end
id = string.format('%d', id)
return (read(id, call('HGET', M .. ':tasks', id)).pri or 0) .. ' ' .. id
