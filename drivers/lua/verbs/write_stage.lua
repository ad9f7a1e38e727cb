-- Bring words of tasks that a write puts later, all or none: a chunk, in a list of its own.
-- KEYS[1]  the tube's meta hash
-- ARGV  1 the write, 2 the chunk, 3 for how many milliseconds it stays, 4 words as put_many has them, in one string
-- answers  of which tube of this name it is a part: when that was born
local M = KEYS[1]
local born = redis.call('HGET', M, 'born')
if not born then return redis.error_reply('TUBEGONE there is no such tube') end
local chunks, list = M .. ':chunks:' .. ARGV[1], M .. ':staged:' .. ARGV[2]
-- What goes on after its write has been given up.
if redis.call('SISMEMBER', chunks, '!') == 1 then return redis.error_reply('ABORTED the write was given up') end
-- If it is there only the answer was lost.
if redis.call('EXISTS', list) == 0 then redis.call('RPUSH', list, ARGV[4]) end
redis.call('PEXPIRE', list, ARGV[3])
redis.call('SADD', chunks, ARGV[2])
redis.call('PEXPIRE', chunks, ARGV[3])
return born
