-- Pack the facts of `task` into one string: see `encode_facts` in lib/task.lua.
-- in: task
-- out: result
  local result = pack('>I8c1I4I4i8', task.id, task.state, task.attempts, task.state == 't' and task.take or 0, task.due or -1)
