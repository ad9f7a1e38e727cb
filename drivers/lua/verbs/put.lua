-- Add a task.
-- ARGV  6 its flags, 7 the rest of its header and its data, 8 microseconds until it is due by itself ('': never),
--       9 its pri ('': 0), 10 its lane ('': none), 11 how many tasks have room ('': any number),
--       12 how many callers in the process are going to wait if there is none ('': none), 13 the process,
--       14 its key, 15 'keep', 'replace' or 'raise'
-- answers  the moment of the put in 7 bytes, then the id; nil if there is no room; if the task of its key is kept: a list
--          of what `shown` says of it, or of the id alone of one that is remembered
--#include begin
if replayed then return replayed end
local replaced
if ARGV[14] then
--#slow if ARGV[14]
  local id, lives = find_key(ARGV[14])
  if id and ARGV[15] == 'raise' then return redis.error_reply('DUPLICATE ' .. id) end
  if id and ARGV[15] == 'keep' then
--#include flush
    return { lives and shown(find(id)) or tonumber(id) }
  end
  replaced = lives and id
--#fast
end
--#if ROOM
local needed, capacity, callers, process = replaced and 0 or 1, tonumber(ARGV[11]), ARGV[12] or '', ARGV[13]
--#include room
--#end
--#include next_id
local created = pack('>I7', now)
local task = {
  id = META.next, value = ARGV[6] .. created .. ARGV[7], attempts = 0, state = 'new',
--#if TIMED|RANK
  created = now, due = false,
--#end
--#if PRI
  pri = tonumber(ARGV[9]),
--#end
--#if LANE
  -- The flags say whether it has a lane: one may be called ''.
  lane = byte(ARGV[6]) % 128 >= 64 and (ARGV[10] or ''),
--#end
}
--#if RANK
-- An order that fails for this task fails before anything is written.
place(task)
--#end
META.next = task.id + 1
if replaced then
--#slow if ARGV[14]
  local task = find(replaced)
--#move delete
--#fast
end
--#if TIMED
local span = tonumber(ARGV[8])
local due = span and now + span
if byte(ARGV[6]) % 2 == 1 then
--#move put_delayed new
else
--#move put new
end
--#else
--#move put new
--#end
if ARGV[14] then
--#slow if ARGV[14]
  enter_key(ARGV[14], task.id, replaced)
--#fast
end
--#if ROOM
if callers ~= '' then call('HDEL', M .. ':waiting', process .. ':room') end
--#end
local answer = created .. task.id
--#done answer
return answer
