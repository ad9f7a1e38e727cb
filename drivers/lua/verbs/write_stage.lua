-- Upload a chunk: words of tasks that a write puts later, all or none, in a list of its own.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the write, 2 the chunk, 3 milliseconds until it expires, 4 words as in put_many, in one string
-- reply  the moment of creation of the tube, which identifies it among tubes of this name
local M = KEYS[1]
local born = redis.call('HGET', M, 'born')
if not born then return redis.error_reply('TUBEGONE there is no such tube') end
local chunks, list = M .. ':chunks:' .. ARGV[1], M .. ':staged:' .. ARGV[2]
-- The caller continues a write that was aborted.
if redis.call('SISMEMBER', chunks, '!') == 1 then return redis.error_reply('ABORTED the write was given up') end
-- If the chunk exists, only the reply was lost.
if redis.call('EXISTS', list) == 0 then redis.call('RPUSH', list, ARGV[4]) end
redis.call('PEXPIRE', list, ARGV[3])
redis.call('SADD', chunks, ARGV[2])
redis.call('PEXPIRE', chunks, ARGV[3])
return born
