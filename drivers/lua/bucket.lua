-- The rate limit of a tube, as in bucket.py. The field `bucket` of the meta hash has the start of the last take if takes
-- came evenly, the moment of the last take, and the scores in ':taken' of the takes at that moment.
local Call = require 'call'
local Pending = require 'pending'

local format = string.format
local find = string.find

local Bucket = {}
-- The parts of the field, and the call for which they were read.
local scheduled, started, starts, read_by

local function write()
  Pending.set(Call.key, 'bucket', format('%.0f %.0f', scheduled, started) .. starts)
end

local function read()
  if read_by ~= Call.values then
    scheduled, started, starts = string.match(Call.bucket or '-1e18 0', '^(%S+) (%S+)(.*)$')
    scheduled, started, read_by = scheduled + 0, started + 0, Call.values
  end
  -- More than a burst of takes ahead means that the clock was set back. The next token comes after one interval then.
  local most = Call.now + (Call.plan.burst - 1) * Call.plan.token
  if scheduled > most then
    scheduled = most
    write()
  end
end

-- Return the moment of the next token; `now` or earlier: there is one.
function Bucket.next_start()
  read()
  return scheduled + (2 - Call.plan.burst) * Call.plan.token
end

-- Return the number of tasks that may be taken now. Without a token, waiters are woken when the next one comes.
function Bucket.tokens()
  local plan = Call.plan
  if plan.token == 0 then return math.huge end
  local moment = Bucket.next_start()
  if moment <= Call.now then return math.min(math.floor((Call.now - moment) / plan.token) + 1, plan.burst) end
  Call.note_due(moment)
  return 0
end

-- Use the tokens of some tasks that this call takes.
function Bucket.start(count)
  read()
  scheduled = math.max(Call.now, scheduled + Call.plan.token) + (count - 1) * Call.plan.token
  if started ~= Call.now then started, starts = Call.now, '' end
  local score = format(' %.0f', Call.session * Call.TAKES + Call.take)
  if not find(starts .. ' ', score .. ' ', 1, true) then starts = starts .. score end
  write()
end

-- Return the token of a taken task, unless another take has started later: that one could have used it.
function Bucket.undo_start(task)
  if Call.plan.token == 0 then return end
  read()
  if find(starts .. ' ', format(' %.0f ', task.owner * Call.TAKES + task.take), 1, true) then
    scheduled = scheduled - Call.plan.token
    write()
  end
end

return Bucket
