-- Count buried tasks by the kinds of their reasons.
-- ARGV  6 the place after which to begin ('': the start), 7 the maximum number of tasks, bounded
-- reply  {the place after which to continue; '': the end}, and each kind with its number of tasks
--#include begin
--#include flush
local places, counts, size = places_after(':buried', ARGV[6], tonumber(ARGV[7])), {}, 0
local found = { #places < tonumber(ARGV[7]) and '' or places[#places] }
for n = 1, #places do
  -- A place that is shorter than an id is damaged: `repair` removes it.
  local task = #places[n] >= 6 and find(id_at(places[n]))
  if task and task.state == '!' then
    local kind = kind_of(task.reason)
    counts[kind] = (counts[kind] or 0) + 1
    size = size + #task.value
  end
  if size >= BYTES and n < #places then
    found[1] = places[n]
    break
  end
end
if found[1] == '' and #places == tonumber(ARGV[7]) then found[1] = '\0' end
for kind, count in pairs(counts) do
  found[#found + 1], found[#found + 2] = kind, count
end
return found
