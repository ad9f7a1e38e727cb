-- Extend the ttr of held tasks to at least this span from now; if the ttl ends taken tasks, extend it as well.
-- ARGV  6 microseconds, 7… as for ack_many
-- reply  as for ack_many
--#include begin
if replayed then return replayed end
local done = {}
for n = 7, #ARGV, 2 do
  local task = find_held(ARGV[n], ARGV[n + 1])
  done[#done + 1] = task and '1' or '0'
  if task then
    local ends = now + ARGV[6]
    -- A task without ttr and ttl has no due time.
    local was = due_of(task.id)
    if was and was < ends then
      local due = task.ttr and ends
--#if ENDS_TAKEN
      if task.ttl and ttl_end(task) < ends then
        task.ttl = ends - task.created
        call('HDEL', M, '')
        write(task)
      end
--#end
--#move touch t
    end
  end
end
local result = table.concat(done)
--#done result
return result
