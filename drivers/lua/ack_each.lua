-- Ack the tasks of ack_some one by one: `done` says for each whether it was held.
for n = 1, #named do
  local task = held_one(named[n], meant[n])
  done[n] = task and '1' or '0'
  if task then
--#move ack t
  end
end
