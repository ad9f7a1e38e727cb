-- List the tasks of a state, in the order in which they leave it.
-- ARGV  6 the position to continue at, returned by an earlier call, 7 the maximum number, bounded, 8 the state: ready
--       (without lanes), delayed or buried, 9 for a first call the id of the task after which to begin ('': at the
--       start), 10 a filter, 11 '1': in the reverse order, not for ready tasks in a list
-- reply  {the position to continue at; '': the end}, each task as `filter_of` says, and the id of the next put
--#include begin
--#include flush
local at, most, state = ARGV[6], tonumber(ARGV[7]), ARGV[8]
local back, accept, weight = ARGV[11] == '1', filter_of(ARGV[10])
if at == '' and ARGV[9] ~= '' then
  local task = find(ARGV[9])
  if not task then return redis.error_reply('NOTFOUND there is no such task') end
  at = state == '~' and string.format('%.0f ', task.state == '~' and task.due or 0) .. pack('>I6', task.id) or place(task)
end
local places
if state == '~' then
--#if TIMED
  places = due_after(at, most, back)
--#else
  places = {}
--#end
elseif state == '!' then
  places = places_after(':buried', at, most, back)
else
--#if LIST
  places = ready_after(at, most)
--#else
  places = places_after(':ready', at, most, back)
--#end
end
-- A damaged place may be empty.
local function position(at) return at == '' and '\0' or at end
local found, size = { #places < most and '' or position(places[most]) }, 0
for n = 1, #places do
  local at = places[n]
  -- A place that is shorter than an id is damaged: `repair` removes it.
  local task = #at >= 6 and find(state == '~' and unpack_struct('>I6', at, #at - 5) or id_at(at))
  size = size + (task and #task.value * weight or 0)
  if task and task.state == state then found[#found + 1] = accept(task) end
  if size >= BYTES and n < #places then
    found[1] = position(at)
    break
  end
end
found[#found + 1] = META.next
return found
