-- The plan of a tube: what its driver and its options mean to the machine, as plain fields.
--
-- The meta hash has both as JSON (`describe` in validation.py). A plan is made once for each pair of texts; with
-- functions it is kept until the server restarts. Times are microseconds, as everywhere in Lua.
local call = redis.call

local Plan = {}
local NEVER = 4611686018427387904
local SIGNS = {
  id = { 0, 1 }, ['-id'] = { 0, -1 }, pri = { 1, 1 }, ['pri,id'] = { 1, 1 }, ['pri,-id'] = { 1, -1 },
  ['-pri'] = { -1, 1 }, ['-pri,id'] = { -1, 1 }, ['-pri,-id'] = { -1, -1 },
}
-- The names that an expression `rank_lua` may use. A client without the right to load scripts may store one, so nothing
-- else is compiled.
local RANK_NAMES = {
  id = true, pri = true, created = true, ['and'] = true, ['or'] = true, ['not'] = true, ['true'] = true,
  ['false'] = true, ['nil'] = true, ['math.floor'] = true, ['math.ceil'] = true, ['math.abs'] = true,
  ['math.min'] = true, ['math.max'] = true, ['math.fmod'] = true, ['math.sqrt'] = true, ['math.huge'] = true,
}

-- Return the first word or character of an expression that is not allowed in `rank_lua`, or nil.
local function forbidden_in(expression)
  local rest = string.gsub(expression, '0[xX]%x+', '0')
  rest = string.gsub(rest, '%d+%.?%d*[eE][%+%-]?%d+', '0')
  for name in string.gmatch(rest, '[%a_][%w_%.]*') do
    if not RANK_NAMES[name] then return name end
  end
  local other = string.match(string.gsub(rest, '[%w_%.%s%+%-%*/%%%^%(%),<>=~]', ''), '.')
  return other or string.match(rest, '%.%.') or string.match(rest, '%-%-')
end

-- Compile `rank_lua`: a function of id, pri and created. Return nil and the reason if it is not an allowed expression.
function Plan.compile_rank(expression)
  local wrong = forbidden_in(expression)
  if wrong then
    return nil, "rank_lua may not contain '" .. wrong .. "', only numbers, id, pri, created, operators and, or, not, ( ), and functions such as math.floor"
  end
  local compiled, why = loadstring('local math = ... return function(id, pri, created) return (' .. expression .. ') + 0 end')
  if not compiled then return nil, why end
  return compiled({
    floor = math.floor, ceil = math.ceil, abs = math.abs, min = math.min, max = math.max, fmod = math.fmod,
    sqrt = math.sqrt, huge = math.huge,
  })
end

-- The fields of the meta hash that every call reads.
Plan.BASE_FIELDS = { 'soonest', 'waiting', 'listening' }

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end

-- Return the plan of a driver and the options of a tube, both as JSON.
function Plan.of(driver_text, options_text)
  local driver, options = cjson.decode(driver_text), cjson.decode(options_text)
  local has, signs = set_of(driver.options), SIGNS[driver.order]
  local lane = driver.lane ~= cjson.null
  local plan = {
    lane = lane,
    pri = has.pri or false,
    timed = has.ttl or has.ttr or has.delay or false,
    by_pri = signs[1] ~= 0,
    greatest_first = signs[1] < 0,
    newest_first = signs[2] < 0,
    ends_taken = not driver.ttl_spares_taken,
    batch = lane and 50 or 200,  -- The most tasks per call that one kind of work moves one by one.
    idle = options.idle or false,
    bounded = (options.capacity or 0) > 0 or options.lane_capacity ~= nil,
    capacity = options.capacity or 0,
    lane_capacity = options.lane_capacity or 0,
    counts_lanes = lane and options.lane_capacity ~= nil,
    keeps = options.keep_done ~= nil,
    keeps_most = options.keep_done_max or 0,
    token = options.rate or 0,
    burst = options.burst or 1,
    fields = {},
  }
  if driver.rank_lua ~= cjson.null then plan.rank = assert(Plan.compile_rank(driver.rank_lua)) end
  plan.order = lane and 'lanes' or (plan.rank or plan.by_pri) and 'set' or 'list'
  plan.index = require('ready').orders[plan.order]
  -- The time that buried tasks live; false: without end.
  if options.buried_ttl then
    plan.has_buried_ttl, plan.buried_ttl = true, options.buried_ttl < NEVER and options.buried_ttl
  end
  if options.backoff and options.backoff ~= cjson.null then
    plan.backoff = { delays = options.backoff[1], jitter = options.backoff[2], seed = options.backoff[3] }
  end
  return plan
end

-- Return the fields of the meta hash that a method reads in a tube with this plan.
function Plan.fields_of(plan, method)
  local fields = plan.fields[method]
  if not fields then
    fields = { unpack(Plan.BASE_FIELDS) }
    if plan.order == 'list' then fields[#fields + 1] = 'strays' end
    if plan.lane then fields[#fields + 1], fields[#fields + 2], fields[#fields + 3] = 'rate_limits', 'filled', 'rounds' end
    if plan.bounded or plan.lane then fields[#fields + 1] = 'filling' end
    if plan.token > 0 then fields[#fields + 1] = 'bucket' end
    for _, name in ipairs(method.fields) do
      if name ~= 'lanes' or plan.lane then fields[#fields + 1] = name end
    end
    plan.fields[method] = fields
  end
  return fields
end

-- Return the driver and the options of the tube with this meta hash, as JSON.
function Plan.texts(key)
  return unpack(call('HMGET', key, 'driver', 'options'))
end

return Plan
