-- Return the next places of an index after `at` ('': the first ones).
local function places_after(part, at, most)
  return call('ZRANGEBYLEX', M .. part, at == '' and '-' or '(' .. at, '+', 'LIMIT', 0, most)
end

-- The same for ':due', where a place is the moment, a space and the member. Many tasks may be due at one moment.
local function due_after(at, most)
  local first, space = 0, string.find(at, ' ', 1, true)
  if space then
    local moment = sub(at, 1, space - 1)
    local last = call('ZCOUNT', M .. ':due', '-inf', moment)
    first = call('ZCOUNT', M .. ':due', '-inf', '(' .. moment)
    while first < last do
      local middle = math.floor((first + last) / 2)
      if call('ZRANGE', M .. ':due', middle, middle)[1] > sub(at, space + 1) then last = middle else first = middle + 1 end
    end
  end
  local found, places = call('ZRANGE', M .. ':due', first, first + most - 1, 'WITHSCORES'), {}
  for n = 1, #found, 2 do places[#places + 1] = found[n + 1] .. ' ' .. found[n] end
  return places
end

-- The same for ready tasks in a list. It contains stale ids. A task that was released has its place in ':back', and
-- may be in the list as well.
--#if LIST
local function ready_after(at, most)
  local first, last = 0, call('LLEN', M .. ':ready')
  while at ~= '' and first < last do
    local middle = math.floor((first + last) / 2)
    local id = call('LINDEX', M .. ':ready', NEWEST_FIRST and -1 - middle or middle)
    if place({ id = id }) > at then last = middle else first = middle + 1 end
  end
  local back, places = places_after(':back', at, most), {}
  local from = NEWEST_FIRST and -first - most or first
  local ids = call('LRANGE', M .. ':ready', from, from + most - 1)
  local n, m = 1, 1
  while #places < most and (ids[n] or back[m]) do
    local id = ids[NEWEST_FIRST and #ids + 1 - n or n]
    local its = id and place({ id = id })
    if back[m] and (not its or back[m] <= its) then
      if back[m] == its then n = n + 1 end
      its, m = back[m], m + 1
    else
      n = n + 1
    end
    places[#places + 1] = its
  end
  return places
end
--#end
