-- Decide what a write puts: from now on it is put whole, by whoever goes on with it.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 who writes, 2 the number of the write, 3 what to put: of each chunk its name, how many tasks and words it has,
--       '1' if they have keys; 4 how many of the chunks are gone, 5 for how many milliseconds that is known, 6 when
--       the tube was born that they were brought for ('': there are none)
-- answers  what to put, which may be an earlier write's that was not finished, behind that one's number; nil: it was done
local M, W = KEYS[1], KEYS[1] .. ':written:' .. ARGV[1]
local born = redis.call('HGET', M, 'born')
if not born then return redis.error_reply('TUBEGONE there is no such tube') end
if redis.call('HGET', W, 'born') ~= born then redis.call('UNLINK', W) end
local known = redis.call('HMGET', W, 'last', 'number', 'chunks')
if known[2] then return known[2] .. ' ' .. known[3] end
if known[1] and tonumber(known[1]) >= tonumber(ARGV[2]) then return end
if ARGV[6] ~= '' and ARGV[6] ~= born then return redis.error_reply('STAGEGONE the tube was dropped and made again') end
if ARGV[4] ~= '0' then return redis.error_reply('STAGEGONE the uploaded tasks are gone') end
redis.call('HSET', W, 'born', born, 'number', ARGV[2], 'chunks', ARGV[3])
redis.call('PEXPIRE', W, ARGV[5])
redis.call('ZADD', M .. ':sealed', redis.call('TIME')[1], ARGV[1])
return ARGV[2] .. ' ' .. ARGV[3]
