-- Failed attempts.

-- True if this was the last attempt of the task.
local function is_last(task)
  return task.most and task.attempts >= task.most
end

-- Count an event in the history of a task: its holder buried it (1), it was buried (2), kicked (3), its ttr expired
-- (4).
local function count_event(task, what)
  local counts = { unpack_struct('>I4I4I4I4', task.past or string.rep('\0', 16)) }
  counts[what] = counts[what] + 1
  task.past = pack('>I4I4I4I4', unpack(counts, 1, 4))
end

--#if BACKOFF
-- Return the delay before the next attempt, in microseconds.
local function backoff_delay(task)
  local delays = RESTS
  return with_jitter(delays[math.min(math.max(task.attempts, 1), #delays)], -REST_JITTER, REST_SEED, task.id, task.attempts)
end
--#end

--#if TIMED
-- Extend the ttl of a task by a delay, but not beyond LONGEST from now on.
local function extend_ttl(task, span)
  if task.ttl then task.ttl = math.min(task.ttl + span, now - task.created + LONGEST) end
end
--#end
