-- Add tasks, all or none.
-- ARGV  6 how many they are, 7 the list where the words are ('': they are ARGV[12…]), 8 how many words,
--       9 how many tasks have room ('': any number), 10 how many callers in the process are going to wait if there is none
--       ('': none), 11 the process, 12… words: for all that have the same options how many they are, and what put has for
--       ARGV[6], [8], [9] and [10]; the rest of their header; and the data of each. Where those differ by their lanes: how
--       many below 0, what put has for ARGV[6], [8] and [9], and of each its lane, and the rest of its header with its data
-- answers  the moment of the put in 7 bytes, then the id of the first; nil if there is no room
--#include begin
if replayed then return replayed end
local size = tonumber(ARGV[6])
--#if ROOM
local needed, capacity, callers, process = size, tonumber(ARGV[9]), ARGV[10] or '', ARGV[11]
--#include room
--#end
local words, at = ARGV, 12
if ARGV[7] ~= '' then
  words, at = brought(ARGV[7], ARGV[8] + 0), 1
  if not words then return redis.error_reply('STAGEGONE the uploaded tasks are gone') end
end
--#include next_id
local created, id = pack('>I7', now), META.next + 0
local answer = created .. META.next
--#if PACED
--#include put_each
--#else
if listening then
--#slow
--#include put_each
--#fast
else
--#include put_all
end
--#end
if ARGV[7] ~= '' then call('UNLINK', M .. ':staged:' .. ARGV[7]) end
--#if ROOM
if callers ~= '' then call('HDEL', M .. ':waiting', process .. ':room') end
--#end
--#done answer
return answer
