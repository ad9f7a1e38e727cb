-- What there is at the end of a verb for those who wait.

--#if CAPACITY
local function has_room()
  local wanted = call('HMGET', M, 'filling', 'capacity')
  if not wanted[1] or tonumber(wanted[1]) <= now then return false end
  return call('HLEN', M .. ':tasks') < tonumber(wanted[2])
end
--#end
