-- Return the next places of an index after `at` ('': the first ones); `back`: in the reverse order.
local function places_after(part, at, most, back)
  if back then
    return call('ZRANGE', M .. part, at == '' and '+' or '(' .. at, '-', 'BYLEX', 'REV', 'LIMIT', 0, most)
  end
  return call('ZRANGEBYLEX', M .. part, at == '' and '-' or '(' .. at, '+', 'LIMIT', 0, most)
end

-- The same for ':due', where a place is the moment, a space and the member. Many tasks may be due at one moment.
local function due_after(at, most, back)
  local first, space = 0, string.find(at, ' ', 1, true)
  if space then
    local moment = sub(at, 1, space - 1)
    local last = call('ZCOUNT', M .. ':due', '-inf', moment)
    first = call('ZCOUNT', M .. ':due', '-inf', '(' .. moment)
    while first < last do
      local middle = math.floor((first + last) / 2)
      local member = call('ZRANGE', M .. ':due', middle, middle)[1]
      if member > sub(at, space + 1) or (back and member == sub(at, space + 1)) then last = middle else first = middle + 1 end
    end
  end
  local final = first + most - 1
  if back then
    final = (space and first or call('ZCARD', M .. ':due')) - 1
    first = math.max(final - most + 1, 0)
  end
  local found, places = final >= first and call('ZRANGE', M .. ':due', first, final, 'WITHSCORES') or {}, {}
  local count = #found / 2
  for n = 1, count do places[back and count + 1 - n or n] = found[2 * n] .. ' ' .. found[2 * n - 1] end
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
