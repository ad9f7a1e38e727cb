-- Change the selected tasks that have not changed since a caller saw them.
-- ARGV  6 the change: kick, release, bury, delete or cancel, 7, 8 its arguments: for kick the new attempts and time to
--       live as `reset_kicked` takes them, for bury and cancel the reason, for cancel the minimum microseconds for
--       which a taken task is kept, 9… for each task its id, 'c' and the moment of its put, its state, its attempts and
--       the number of its take
-- reply  for each task '1' if it was changed, '0' if not
--#include begin
if replayed then return replayed end
call('HDEL', M, '')
local act, done, held = ARGV[6], {}, {}
for n = 9, #ARGV, 5 do
  local state, task, due = ARGV[n + 2], nil, nil
  local changed = false
  if state == '-' then
--#if KEEPS
--#slow
    changed = encode_done(ARGV[n], ARGV[n + 1])
    if changed then forget_done({ pack('>I6', ARGV[n]) }) end
--#fast
--#end
  else
    task = find_expected(ARGV[n], ARGV[n + 1])
    changed = task and task.state == state and task.attempts == ARGV[n + 3] + 0 and task.take == ARGV[n + 4] + 0
  end
  done[#done + 1] = changed and '1' or '0'
  task = changed and task
  if task and act == 'release' then
    held[#held + 1] = task.id
  elseif task and act == 'delete' then
--#slow
--#move delete
--#fast
  elseif task and act == 'kick' then
--#slow
    reset_kicked(task, ARGV[7], ARGV[8])
--#move kick
--#fast
  elseif task and act == 'cancel' then
--#slow
    task.reason = ARGV[7] ~= '' and ARGV[7]
    write(task)
    if task.state == 't' then task.keep_done = math.max(task.keep_done or 0, ARGV[8] + 0) end  --#if KEEPS
--#move cancel
--#fast
  elseif task then
--#slow
    task.reason = ARGV[7] ~= '' and ARGV[7]
    if task.state == 't' then count_event(task, 1) end
--#move bury
--#fast
  end
end
if #held > 0 then
--#slow
  release_for_all(held)
--#fast
end
local result = table.concat(done)
--#done result
return result
