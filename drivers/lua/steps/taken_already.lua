-- A repeated call that takes several tasks returns the tasks that its caller still holds.
-- in: nothing
if replayed then
--#slow
  local tasks = {}
  for id in string.gmatch(replayed, '%d+') do
    tasks[#tasks + 1] = find_held(id, this_take)
    if tasks[#tasks] then tasks[#tasks].due = due_of(tasks[#tasks].id) end  --#if TIMED
  end
  -- Report that there may be more.
  if #tasks > 0 then return encode_tasks(tasks, true) end
--#fast
end
