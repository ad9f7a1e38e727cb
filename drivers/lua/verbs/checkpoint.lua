-- Store facts in the context of a held task, and give it at least its own ttr from now on, as renew_many does.
-- ARGV  6, 7, 8 as for ack, 9 'c' and the moment of its put ('': unknown), 10… names and values
-- reply  as for ack; if the task was cancelled and is kept, the done task
--#include begin
--#if KEEPS
if not replayed and not find_held(ARGV[6], ARGV[7]) then
--#slow
  local kept = encode_done(ARGV[6], ARGV[9])
  if kept and sub(kept, 26, 26) == 'c' then return kept end
--#fast
end
--#end
--#include find_held
local due
--#if TIMED
task.due = due_of(task.id)
due = task.due
local ends = task.ttr and now + task.ttr
if due and ends and due < ends then
  due = ends
  if task.ttl and ttl_end(task) < ends then task.ttl = ends - task.created end  --#if ENDS_TAKEN
end
--#end
call('HDEL', M, '')
if ARGV[10] then
  local changed, words, at = {}, task.context or '', 1
  for n = 10, #ARGV, 2 do changed[ARGV[n]] = ARGV[n + 1] end
  task.context = ''
  while at <= #words do
    local name, value
    name, at = text_at(words, at)
    value, at = text_at(words, at)
    if not changed[name] then task.context = task.context .. text(name) .. text(value) end
  end
  for n = 10, #ARGV do task.context = task.context .. text(ARGV[n]) end
end
write(task)
--#move touch t
--#include return_task
