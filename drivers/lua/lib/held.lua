-- What a session has.

-- By how many attempts the session of ARGV[1] has the task that ARGV[6] names, by the take of ARGV[7] if one is named;
-- nil: it does not.
local function attempts_held()
  local attempts = (call('ZSCORE', M .. ':taken', ARGV[6]) or 0) - ARGV[1] * TURNS
  if attempts < 0 or attempts >= TURNS or (ARGV[7] ~= '' and attempts ~= ARGV[7] + 0) then return nil end
  return attempts
end

-- The task itself, if the session has it.
local function held()
  local attempts = attempts_held()
  if not attempts then return nil end
  local task = read(ARGV[6], call('HGET', M .. ':tasks', ARGV[6]))
  task.state, task.attempts, task.owner = 't', attempts, ARGV[1]
  return task
end

-- One of many that a call names: by its id, and the take that is meant ('': whichever).
local function held_one(id, meant)
  local attempts = (call('ZSCORE', M .. ':taken', id) or 0) - ARGV[1] * TURNS
  if attempts < 0 or attempts >= TURNS or (meant ~= '' and attempts ~= meant + 0) then return nil end
  local task = read(id, call('HGET', M .. ':tasks', id))
  task.state, task.attempts, task.owner = 't', attempts, ARGV[1]
  return task
end
