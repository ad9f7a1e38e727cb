-- The tasks of ack_many one by one: `done` says for each whether it was held.
for n = 6, #ARGV, 2 do
  local task, due = held_one(ARGV[n], ARGV[n + 1])
  done[#done + 1] = task and '1' or '0'
  if task then
--#move ack t
  end
end
