-- Store facts in the context of a held task, and give it at least its own ttr from now on, as renew_many does.
-- ARGV  6, 7, 8 as for ack, 9… names and values
-- reply  as for ack
--#include begin
--#include held_task
local due
--#if TIMED
task.due = due_of(task.id)
due = task.due
local ends = task.ttr and now + task.ttr
if due and ends and due < ends then
  due = ends
--#if ENDS_TAKEN
  if task.ttl and dead_of(task) < ends then task.ttl = ends - task.created end
--#end
end
--#end
call('HDEL', M, '')
if ARGV[9] then
  local changed, words, at = {}, task.context or '', 1
  for n = 9, #ARGV, 2 do changed[ARGV[n]] = ARGV[n + 1] end
  task.context = ''
  while at <= #words do
    local name, value
    name, at = text_at(words, at)
    value, at = text_at(words, at)
    if not changed[name] then task.context = task.context .. text(name) .. text(value) end
  end
  for n = 9, #ARGV do task.context = task.context .. text(ARGV[n]) end
end
write(task)
--#move touch t
--#include reply
