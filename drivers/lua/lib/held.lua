-- What a session has.

-- The task that ARGV[6] names, with id, state, attempts and owner, if the session of ARGV[1] has it, by the take of
-- ARGV[7] if one is named; else nil.
local function holding()
  local attempts = (call('ZSCORE', M .. ':taken', ARGV[6]) or 0) - ARGV[1] * TURNS
  if attempts < 0 or attempts >= TURNS or (ARGV[7] ~= '' and attempts ~= ARGV[7] + 0) then return nil end
  return { id = ARGV[6], state = 't', attempts = attempts, owner = ARGV[1] }
end

-- The same with all that is stored of it.
local function held()
  local mine = holding()
  if not mine then return nil end
  local task = read(mine.id, call('HGET', M .. ':tasks', mine.id))
  task.state, task.attempts, task.owner = 't', mine.attempts, mine.owner
  return task
end
