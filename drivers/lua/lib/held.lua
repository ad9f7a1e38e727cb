-- Tasks that a session holds.

-- Return the task with an id if the session of ARGV[1] holds it, else nil. `expected`: the number of a take; '': any
-- take; 'c' and a moment: any take, if the task was put at that moment.
local function find_held(id, expected)
  local score = call('ZSCORE', M .. ':taken', id)
  local take = score and score - ARGV[1] * TAKES
  if not take or take < 0 or take >= TAKES then return nil end
  local by_put = expected ~= '' and take ~= tonumber(expected)
  if by_put and byte(expected) ~= 99 then return nil end
  local task = read(id, call('HGET', M .. ':tasks', id))
  task.state, task.take, task.owner = 't', take, ARGV[1]
  if task.attempts < MOST_ATTEMPTS then task.attempts = task.attempts + 1 end
  if by_put then
--#slow
    if not is_expected(task, expected) then return nil end
--#fast
  end
  return task
end
