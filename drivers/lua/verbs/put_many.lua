-- Add tasks, all or none.
-- ARGV  6 how many they are, 7 the list where the words are ('': they are ARGV[12…]), 8 how many words,
--       9 how many tasks have room ('': any number), 10 how many callers in the process are going to wait if there is none
--       ('': none), 11 the process, 12… words: for all that have the same options how many they are, and what put has for
--       ARGV[6], [8], [9] and [10]; the rest of their header; and the data of each
-- answers  the moment of the put in 7 bytes, then the id of the first; nil if there is no room
--#include begin
if replayed then return replayed end
local size = tonumber(ARGV[6])
local capacity = tonumber(ARGV[9])
if capacity and call('HLEN', M .. ':tasks') + size > capacity then
  if (ARGV[10] or '') ~= '' then
--#slow
    wait_for_room(size, ARGV[10], ARGV[11])
--#fast
  end
--#include flush
  return false
end
local words, at = ARGV, 12
if ARGV[7] ~= '' then
  words, at = call('LRANGE', M .. ':staged:' .. ARGV[7], 0, -1), 1
  if #words ~= tonumber(ARGV[8]) then return redis.error_reply('STAGEGONE what was brought is gone') end
end
local created, id = pack('>I7', now), META.next + 0
local answer = created .. META.next
-- All are made before the first is put: an order that fails for one of them fails before anything is written.
local ready, delayed, all = {}, {}, {}
while #all < size do
  local flags = words[at + 1]
  local is_delayed = byte(flags) % 2 == 1
  local head = flags .. created .. words[at + 5]
--#if TIMED
  local due = words[at + 2] ~= '' and now + words[at + 2]
--#end
--#if PRI
  local pri = tonumber(words[at + 3])
--#end
--#if LANE
  local named = byte(flags) % 128 >= 64 and words[at + 4]
--#end
  local count = tonumber(words[at])
  at = at + 5
  local those = is_delayed and delayed or ready
  for n = at + 1, at + count do
    local task = {
      id = string.format('%d', id), value = head .. words[n], attempts = 0, state = 'new',
--#if TIMED|RANK
      created = now,
--#end
--#if TIMED
      due = due,
--#end
--#if PRI
      pri = pri,
--#end
--#if LANE
      lane = named,
--#end
    }
--#if RANK
    place(task)
--#end
    id = id + 1
    those[#those + 1], all[#all + 1] = task, task
  end
  at = at + count + 1
end
META.next = id
--#if LANE
for n = 1, size do
  local task, due = all[n], all[n].due
--#if TIMED
  if byte(task.value) % 2 == 1 then
--#move put_delayed new
  else
--#move put new
  end
--#else
--#move put new
--#end
end
--#else
if listening then
--#slow
  for n = 1, size do
    local task, due = all[n], all[n].due
--#if TIMED
    if byte(task.value) % 2 == 1 then
--#move put_delayed new
    else
--#move put new
    end
--#else
--#move put new
--#end
  end
--#fast
else
  do
    local tasks = ready
--#moves put new
  end
--#if TIMED
  if #delayed > 0 then
    local tasks = delayed
--#moves put_delayed new
  end
--#end
end
--#end
if ARGV[7] ~= '' then call('UNLINK', M .. ':staged:' .. ARGV[7]) end
if (ARGV[10] or '') ~= '' then call('HDEL', M .. ':waiting', ARGV[11] .. ':room') end
--#done answer
return answer
