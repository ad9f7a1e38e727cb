-- Add a task to the columns of a take. Its attempts and due time follow from its stored form.
-- in: ids, values, attempts, dues, due_times, undue, text_of, format, leased, n
--#flat
task.value, task.attempts = values[n], 0
--#include read_task
local count = math.min(task.attempts + 1, MOST_ATTEMPTS)
local text = text_of[count]
if not text then
  text = format('%d', count)
  text_of[count] = text
end
attempts[n] = text
local due = not leased and task.ttr and now + task.ttr
--#if ENDS_TAKEN
if task.ttl then
  local dead = unpack_struct('>I7', task.value, 2) + task.ttl
  if not due or dead < due then due = dead end
end
--#end
if due then
  dues[#dues + 1], dues[#dues + 2] = format('%.0f', due), pack('>I6', ids[n])
  due_times[n] = dues[#dues - 1]
  if not soonest or due < soonest then soonest = due end
else
  due_times[n] = '-1'
  if task.ttl or task.ttr then undue[#undue + 1] = pack('>I6', ids[n]) end
end
