-- Remove tasks that are unchanged since a caller read them, because they now live elsewhere: they are not kept, and
-- their keys become free.
-- ARGV  6… for each task its id, its take or put as in find_any.lua, its state, and the SHA-1 of its data
-- reply  for each task '1' if it was removed, '0' if not
-- in: put_there?
--#include begin
if replayed then return replayed end
local first, final = 6, #ARGV
first, final = 7, 6 + 4 * ARGV[6]  --#if RELAY
local found, done = {}, {}
for n = first, final, 4 do
  local task = find_expected(ARGV[n], ARGV[n + 1])
  local same = task and task.state == ARGV[n + 2] and redis.sha1hex(sub(task.value, task.body)) == ARGV[n + 3]
  found[#done + 1] = same and task
  done[#done + 1] = same and '1' or '0'
end
--#if RELAY
--#slow
local refusal = put_there(done, final)
if refusal then return redis.error_reply('THERE ' .. refusal) end
--#fast
--#end
call('HDEL', M, '')
for n = 1, #done do
  local task = found[n]
  if task then
    task.keep_done, task.key_ttl = nil, nil
--#move delete
  end
end
local result = table.concat(done)
--#done result
return result
