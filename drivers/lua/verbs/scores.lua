-- What is known of tasks besides what is stored of them: who has them, and when they are due.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the first id and 2 how many, or '' and '' and 3… ids; 2000 at most
-- answers  {the scores of those that are taken, the moments at which they are due}: each in one string, '-' where there is
--          none; one word if it is the same for all, '' if nothing is taken or due at all
local M, ids = KEYS[1], nil
if redis.call('EXISTS', M) == 0 then return redis.error_reply('TUBEGONE there is no such tube') end
local function all_ids()
  if ids then return ids end
  ids = {}
  local first = tonumber(ARGV[1])
  for n = 1, first and ARGV[2] or 0 do ids[n] = string.format('%d', first + n - 1) end
  for n = 3, #ARGV do ids[n - 2] = ARGV[n] end
  return ids
end
local function all(name, member)
  local key = M .. name
  if redis.call('EXISTS', key) == 0 then return '' end
  local members = all_ids()
  if member then
    members = {}
    for n = 1, #ids do members[n] = member(ids[n]) end
  end
  local scores = redis.call('ZMSCORE', key, unpack(members))
  local alike = true
  for n = 1, #scores do
    scores[n] = scores[n] or '-'
    alike = alike and scores[n] == scores[1]
  end
  return alike and scores[1] or table.concat(scores, ' ')
end
return { all(':taken'), all(':due', function(id) return struct.pack('>I6', id) end) }
