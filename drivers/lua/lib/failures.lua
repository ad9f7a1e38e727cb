-- What becomes of a task whose attempt has failed.

-- Whether that was the last attempt that it has.
local function is_last(task)
  return task.most and task.attempts >= task.most
end

--#if BACKOFF
-- How many microseconds it rests.
local function rest_of(task)
  local delays = RESTS
  return varied(delays[math.min(math.max(task.attempts, 1), #delays)], -REST_JITTER, REST_SEED, task.id, task.attempts)
end
--#end

--#if TIMED
-- Its life is prolonged, as by a delay: not beyond LONGEST from now on.
local function prolong(task, span)
  if task.ttl then task.ttl = math.min(task.ttl + span, now - task.created + LONGEST) end
end
--#end
