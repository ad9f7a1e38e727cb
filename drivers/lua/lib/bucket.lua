-- The rate limit of a tube, as in bucket.py. META.bucket has the start of the last take if takes came evenly, the
-- moment of the last take, and the scores in ':taken' of the takes at that moment.
--#if RATED
local scheduled, started, starts

local function write_bucket()
  call('HSET', M, 'bucket', string.format('%.0f %.0f', scheduled, started) .. starts)
end

local function read_bucket()
  if not starts then
    scheduled, started, starts = string.match(META.bucket or '-1e18 0', '^(%S+) (%S+)(.*)$')
    scheduled, started = scheduled + 0, started + 0
  end
  -- More than BURST takes ahead means that the clock was set back. The next token comes after one interval then.
  local most = now + (BURST - 1) * TOKEN
  if scheduled > most then
    scheduled = most
    write_bucket()
  end
end

-- Return the moment of the next token; `now` or earlier: there is one.
local function next_token()
  read_bucket()
  return scheduled + (2 - BURST) * TOKEN
end

-- Return how many tasks may be taken now. If there is no token, callers are woken at the next one.
local function tokens()
  local moment = next_token()
  if moment <= now then return math.min(math.floor((now - moment) / TOKEN) + 1, BURST) end
  --#include note_due
  return 0
end

-- Use the tokens of some tasks that this call takes.
local function use_tokens(count)
  read_bucket()
  scheduled = math.max(now, scheduled + TOKEN) + (count - 1) * TOKEN
  if started ~= now then started, starts = now, '' end
  local score = string.format(' %.0f', ARGV[1] * TAKES + this_take)
  if not string.find(starts .. ' ', score .. ' ', 1, true) then starts = starts .. score end
  write_bucket()
end

-- Return the token of a taken task, unless another take has started later: that one could have used it.
local function return_token(task)
  read_bucket()
  if string.find(starts .. ' ', string.format(' %.0f ', task.owner * TAKES + task.take), 1, true) then
    scheduled = scheduled - TOKEN
    write_bucket()
  end
end
--#end
