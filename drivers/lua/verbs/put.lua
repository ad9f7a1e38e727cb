-- Add a task.
-- ARGV  6 its flags, 7 the rest of its header and its data, 8 microseconds until it is due by itself ('': never),
--       9 '1': it is delayed, 10 its pri ('': 0), 11 its lane ('': none),
--       12 how many tasks have room (0: any number), 13 how many callers in the process are going to wait if there
--       is none ('': none), 14 the process
-- answers  the moment of the put in 7 bytes, then the id; nil if there is no room
--#include begin
if replayed then return replayed end
--#if CAPACITY
local capacity = tonumber(ARGV[12])
if capacity > 0 and call('HLEN', M .. ':tasks') >= capacity then
  if ARGV[13] ~= '' then
    local watched = WATCHED
    call('HDEL', M, 'filling')
    note('filling', watched)
    call('HSET', M .. ':waiting', ARGV[14], string.format('%s %.0f', ARGV[13], watched))
  end
  flush()
  return false
end
--#end
local id, created, due = META.next, pack('>I7', now), ARGV[8] ~= '' and now + ARGV[8]
local task = {
  id = id, created = now, value = ARGV[6] .. created .. ARGV[7], attempts = 0, state = 'new', due = false,
  -- The flags say whether it has a lane: one may be called ''.
  pri = tonumber(ARGV[10]), lane = string.byte(ARGV[6]) % 128 >= 64 and ARGV[11],
}
--#if RANK
-- An order that fails for this task fails before anything is written.
place(task)
--#end
note('next', id + 1)
--#if TIMED
if ARGV[9] ~= '' then
--#move put_delayed new
else
--#move put new
end
--#else
--#move put new
--#end
local answer = created .. id
return finish(answer, answer)
