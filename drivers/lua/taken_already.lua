-- A call that takes several tasks comes again: those that its caller still has are the answer.
if replayed then
--#slow
  local tasks = {}
  for id in string.gmatch(replayed, '%d+') do
    tasks[#tasks + 1] = held_one(id, this_take)
--#if TIMED
    if tasks[#tasks] then tasks[#tasks].due = due_of(tasks[#tasks].id) end
--#end
  end
  -- And perhaps there were more.
  if #tasks > 0 then return shown_all(tasks, true) end
--#fast
end
