-- Ready tasks in order, for drivers without lanes: a list or a sorted set.
--
-- The order of a driver has a table with the same functions: `push` a released task, `append` a new one, `append_all`
-- many, `pull` one out, `pop` the first, `pop_some` several, `unpop` some back, `has_ready`. lanes.lua has the third one.
-- `Call.plan.index` is the table of the tube.
--
-- The place of a task is a string that sorts in the order of takes: its rank or its priority, if the driver orders by
-- one, followed by the id in 6 bytes.
local Call = require 'call'
local Bucket = require 'bucket'
local Lists = require 'lists'
local Pending = require 'pending'

local call = redis.call
local pack = struct.pack
local unpack_struct = struct.unpack
local byte = string.byte
local format = string.format
local LAST_ID = 281474976710655

local Ready = {}
local orders = {}
Ready.orders = orders

-- The size of the priority in bytes, then the priority. This is short for the most frequent one, 0.
local function pri_place(pri)
  if pri == 0 then return '\0' end
  local size = pri < 256 and 1 or pri < 65536 and 2 or 4
  return pack('>I1I' .. size, size, pri)
end

-- The bytes of a double, so that they sort like the number: its sign bit is flipped, for a negative number all bits.
local function rank_place(rank)
  -- + 0 turns -0.0 into 0.0: they would sort differently.
  local a, b, c, d, e, f, g, h = byte(pack('>d', rank + 0), 1, 8)
  if a >= 128 then return string.char(255 - a, 255 - b, 255 - c, 255 - d, 255 - e, 255 - f, 255 - g, 255 - h) end
  return string.char(a + 128, b, c, d, e, f, g, h)
end

-- Return the place of a task.
function Ready.place(task)
  local plan = Call.plan
  local at = pack('>I6', plan.newest_first and LAST_ID - task.id or task.id)
  if plan.rank then return rank_place(plan.rank(tonumber(task.id), task.pri or 0, task.created)) .. at end
  if plan.by_pri then return pri_place(plan.greatest_first and 4294967295 - (task.pri or 0) or task.pri or 0) .. at end
  return at
end

-- Return the id in a place.
function Ready.id_at(at)
  local id = unpack_struct('>I6', at, #at - 5)
  return Call.plan.newest_first and LAST_ID - id or id
end

local place, id_at = Ready.place, Ready.id_at

function Ready.add_order(name, functions)
  orders[name] = functions
end

-- The most tasks that may be taken now, of `limit`.
local function allowed(limit)
  if Call.is_paused() then return 0 end
  if Call.plan.token > 0 then return math.min(limit, Bucket.tokens()) end
  return limit
end

Ready.allowed = allowed

-- A list of ids, for drivers that order them by id ------------------------------------------------------------------

-- ':ready' is a list of ids, to which a put appends. A released task goes to the sorted set ':back', which has its
-- place. An id may remain in the list after its task has left. The field `strays` counts them: these stale ids, and
-- the tasks in ':back'. While there are none, calls look for neither.
local List = {}
orders.list = List

-- The number of stale ids that one call skips at most.
local SKIPS = 1000

local function strays()
  return (Call.strays or 0) + 0
end

local function add_strays(by)
  Call.strays, Call.values.strays = call('HINCRBY', Call.key, 'strays', by), (Call.values.strays or 0) + by
end

List.strays = strays

function List.append(task)
  call('RPUSH', Call.keys.ready, task.id)
end

function List.append_all(ids)
  Lists.run('RPUSH', Call.keys.ready, ids)
end

function List.push(task)
  add_strays(1)
  call('ZADD', Call.keys.back, 0, place(task))
end

-- True if an id in the list belongs to a ready task.
local function is_ready_id(id)
  local value = Pending.get(Call.keys.tasks, id)
  if not value or byte(value, 1) % 4 ~= 0 then return false end
  return not Pending.score(Call.keys.taken, id)
end

function List.pull(task)
  if call('ZREM', Call.keys.back, place(task)) == 1 then return add_strays(-1) end
  -- Leave a stale id in the list, unless it is near the end.
  local next_id = Call.next or call('HGET', Call.key, 'next')
  if next_id - task.id < 100 and call('LREM', Call.keys.ready, -1, task.id) == 1 then return end
  add_strays(1)
end

-- Return the id of the first task if there are strays. `popped`: the ids (numbers) that this call has popped but not
-- taken yet. Such a task may still be in the list if it came from ':back'.
local function pop_among_strays(popped, skips)
  local newest_first = Call.plan.newest_first
  local back = call('ZRANGE', Call.keys.back, 0, 0)[1]
  local first = back and id_at(back)
  while skips.left > 0 do
    local id = tonumber(call('LINDEX', Call.keys.ready, newest_first and -1 or 0) or nil)
    if first and (not id or first == id or (first > id) == newest_first) then
      call('ZREM', Call.keys.back, back)
      add_strays(-1)
      return first
    end
    if not id then return false end
    call(newest_first and 'RPOP' or 'LPOP', Call.keys.ready)
    if is_ready_id(id) and not (popped and popped[id]) then return id end
    add_strays(-1)
    skips.left = skips.left - 1
  end
end

-- Pop the first task that may be taken and return its id. false: no task may be taken; nil: not found yet, because of
-- too many stale ids.
function List.pop()
  local plan, count = Call.plan, Call.strays
  if Call.paused and Call.is_paused() or (plan.token > 0 and Bucket.tokens() == 0) then return false end
  if not count or count == '0' then return call(plan.newest_first and 'RPOP' or 'LPOP', Call.keys.ready) end
  return pop_among_strays(nil, { left = SKIPS })
end

-- Return the ids of the first tasks, at most `limit`; true if stale ids have ended the search; and an argument for
-- `unpop`.
function List.pop_some(limit)
  limit = allowed(limit)
  if limit == 0 then return {} end
  if strays() == 0 then return call(Call.plan.newest_first and 'RPOP' or 'LPOP', Call.keys.ready, limit) or {} end
  local ids, popped, skips = {}, {}, { left = SKIPS }
  for n = 1, limit do
    local id = pop_among_strays(popped, skips)
    if not id then return ids, id == nil end
    ids[n] = format('%d', id)
    popped[id + 0] = true
  end
  return ids
end

-- Return the tasks from `first` on to their places.
function List.unpop(ids, first)
  for n = #ids, first, -1 do
    if strays() == 0 then
      call(Call.plan.newest_first and 'RPUSH' or 'LPUSH', Call.keys.ready, ids[n])
    else
      List.push({ id = ids[n] })
    end
    ids[n] = nil
  end
end

function List.has_ready()
  return call('EXISTS', Call.keys.ready, Call.keys.back) > 0
end

-- Remove stale ids if there are many and more than tasks: some in each call, and twice as many as this call has made
-- (`added`). They are popped from the beginning of the list. Ready tasks among them go to ':back', which keeps their
-- order.
function List.remove_stale(added)
  local stale = strays() - call('ZCARD', Call.keys.back)
  if stale < 1000 or stale < 2 * call('HLEN', Call.keys.tasks) then return end
  local left, size, by = 500 + 2 * math.max(0, added), 0, 0
  while left > 0 and size < Call.BYTES do
    local ids = call('LPOP', Call.keys.ready, 20)
    if not ids then break end
    local values, scores = call('HMGET', Call.keys.tasks, unpack(ids)), call('ZMSCORE', Call.keys.taken, unpack(ids))
    for n = 1, #ids do
      local value = values[n]
      local ready = value and byte(value, 1) % 4 == 0 and not scores[n]
      by = by + (ready and call('ZADD', Call.keys.back, 0, place({ id = ids[n] })) == 1 and 1 or -1)
      size = size + (value and #value or 0)
    end
    left = left - #ids
  end
  call('HINCRBY', Call.key, 'strays', by)
end

-- A sorted set of places -----------------------------------------------------------------------------------------------

local Set = {}
orders.set = Set

function Set.append(task)
  Pending.add(Call.keys.ready, 0, place(task))
end

Set.push = Set.append

function Set.append_all(scored)
  Lists.run('ZADD', Call.keys.ready, scored)
end

function Set.pull(task)
  Pending.remove(Call.keys.ready, place(task))
end

-- The functions of a sorted set, ':ready' or ':offers', that begin with its first places.
local function add_pops(order, part)
  -- `ahead`: how many tasks a batch is going to pop.
  function order.pop(ahead)
    if Call.is_paused() or (Call.plan.token > 0 and Bucket.tokens() == 0) then return false end
    local at = Pending.pop(Call.keys[part], ahead)
    return at and id_at(at) or false
  end

  function order.pop_some(limit)
    limit = allowed(limit)
    if limit == 0 then return {} end
    local scored, ids = call('ZPOPMIN', Call.keys[part], limit), {}
    for n = 1, #scored, 2 do ids[#ids + 1] = format('%d', id_at(scored[n])) end
    return ids, false, scored
  end

  function order.unpop(ids, first, scored)
    for n = #ids, first, -1 do
      call('ZADD', Call.keys[part], 0, scored[2 * n - 1])
      ids[n] = nil
    end
  end

  function order.has_ready()
    return call('EXISTS', Call.keys[part]) == 1
  end
end

Ready.add_pops = add_pops
add_pops(Set, 'ready')

return Ready
