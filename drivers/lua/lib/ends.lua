-- What there is at the end of a verb for those who wait.

-- Read only where it matters: most verbs need not know.
local function pauses()
  local ends = call('HGET', M, 'paused')
  return ends and ends + 0 > now
end

--#if CAPACITY
local function has_room()
  local wanted = call('HMGET', M, 'filling', 'capacity')
  if not wanted[1] or tonumber(wanted[1]) <= now then return false end
  return call('HLEN', M .. ':tasks') < tonumber(wanted[2])
end
--#end
