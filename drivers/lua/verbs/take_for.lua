-- Take the next tasks for the given time: a task without a ttr keeps it as its ttr.
-- ARGV  6 the maximum number of tasks, 7 microseconds
-- reply  as for take_many
--#include begin
--#include taken_already
local tasks, size, stuck = {}, 0, false
for n = 1, tonumber(ARGV[6]) do
  local id = nil
  stuck = n > SOME or size >= BYTES
  if not stuck then
    id = pop()
    stuck = id == nil
  end
  if not id then break end
  local task = read(id, call('HGET', M .. ':tasks', id))
  local due = now + ARGV[7]
  task.owner = ARGV[1]
  if not task.ttr then
    task.ttr = tonumber(ARGV[7])
    write(task)
  end
--#move take r
  tasks[n] = task
  size = size + #task.value
end
--#include show_taken
