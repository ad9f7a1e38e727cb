-- Tasks as they are stored, with what is known of them elsewhere.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the first id and 2 how many, or '' and '' and 3… ids; 1000 at most
-- answers  {the tasks (nil: gone), the scores of those that are taken and the moments at which they are due, each in one
--          string, '-' where there is none}
local M, ids = KEYS[1], {}
if ARGV[1] ~= '' then
  for n = 1, ARGV[2] do ids[n] = string.format('%d', ARGV[1] + n - 1) end
else
  for n = 3, #ARGV do ids[n - 2] = ARGV[n] end
end
local function all(command, key, members)
  if redis.call('EXISTS', key) == 0 then return '' end
  local scores = redis.call(command, key, unpack(members))
  for n = 1, #scores do scores[n] = scores[n] or '-' end
  return table.concat(scores, ' ')
end
local places = {}
for n = 1, #ids do places[n] = struct.pack('>I6', ids[n]) end
return { redis.call('HMGET', M .. ':tasks', unpack(ids)), all('ZMSCORE', M .. ':taken', ids), all('ZMSCORE', M .. ':due', places) }
