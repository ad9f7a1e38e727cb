-- Ack the tasks of ack_some.lua one by one. Each entry of `done` is '1' if the session held that task.
-- in: done, expected, named
for n = 1, #named do
  local task = find_held(named[n], expected[n])
  done[n] = task and '1' or '0'
  if task then
--#move ack t
  end
end
