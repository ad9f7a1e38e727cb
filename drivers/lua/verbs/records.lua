-- Tasks as they are stored, with what is known of them elsewhere.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the first id and 2 how many, or '' and '' and 3… ids; 1000 at most
-- answers  {the tasks (nil: gone), the scores of those that are taken and the moments at which they are due}: each in one
--          string, '-' where there is none; one word if it is the same for all, '' if nothing is taken or due at all
local M, ids = KEYS[1], {}
local first = tonumber(ARGV[1])
if first then
  for n = 1, ARGV[2] do ids[n] = first + n - 1 end
else
  for n = 3, #ARGV do ids[n - 2] = ARGV[n] end
end
local function all(name, member)
  local key, members = M .. name, ids
  if redis.call('EXISTS', key) == 0 then return '' end
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
return { redis.call('HMGET', M .. ':tasks', unpack(ids)), all(':taken'), all(':due', function(id) return struct.pack('>I6', id) end) }
