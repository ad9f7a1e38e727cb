-- Seal a write: fix its chunks. From now on all of them are put, by this writer or by another one that continues it.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the writer, 2 the number of the write, 3 its chunks: for each its name, its number of tasks and of words, '1'
--       if they have keys, 4 the number of missing chunks, 5 milliseconds for which the seal is remembered, 6 the
--       moment of creation of the tube for which they were uploaded ('': no chunks)
-- reply  the number of a write and its chunks: of this write, or of an earlier one that is not done; nil: the write is
--        done
local M, write = KEYS[1], KEYS[1] .. ':written:' .. ARGV[1]
local born = redis.call('HGET', M, 'born')
if not born then return redis.error_reply('TUBEGONE there is no such tube') end
if redis.call('HGET', write, 'born') ~= born then redis.call('UNLINK', write) end
local known = redis.call('HMGET', write, 'last', 'number', 'chunks')
if known[2] then return known[2] .. ' ' .. known[3] end
if known[1] and tonumber(known[1]) >= tonumber(ARGV[2]) then return end
if ARGV[6] ~= '' and ARGV[6] ~= born then return redis.error_reply('STAGEGONE the tube was dropped and made again') end
if ARGV[4] ~= '0' then return redis.error_reply('STAGEGONE the uploaded tasks are gone') end
redis.call('HSET', write, 'born', born, 'number', ARGV[2], 'chunks', ARGV[3])
redis.call('PEXPIRE', write, ARGV[5])
redis.call('ZADD', M .. ':sealed', redis.call('TIME')[1], ARGV[1])
return ARGV[2] .. ' ' .. ARGV[3]
