-- Check the number of taken tasks of some lanes against all taken tasks.
-- ARGV  3 '': check the stored numbers, '1': give the lanes new numbers, 4… lanes
-- reply  the problems
local taken = {}
for n = 4, #ARGV do taken[ARGV[n]] = 0 end
for _, id in ipairs(call('ZRANGE', M .. ':taken', 0, -1)) do
  local value = call('HGET', M .. ':tasks', id)
  local task = value and stored_task(id, value)
  local name = task and task.state == 't' and (task.lane or 'nil')
  if name and taken[name] then taken[name] = taken[name] + 1 end
end
for n = 4, #ARGV do
  local name = ARGV[n]
  local about = lane_of(name)
  if ARGV[3] == '1' then
    if about and note('lane', name) then
      call('HDEL', M .. ':lanes', name)
      if about.head ~= '' then call('ZREM', M .. ':offers', about.head) end
      repair_lane(name, taken[name], about.head ~= '' and about.head)
    end
  elseif (about and about.taken or 0) ~= taken[name] and note('lane', name) then
    repair_lane(name, taken[name])
  end
end
return found
