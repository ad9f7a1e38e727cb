-- Remove the tube and all that is in it.
-- ARGV  6 '1': although tasks are taken or callers wait, 7 the process, 8 how many wait in it
-- answers  nothing, or {how many tasks are taken, how many callers wait} if it is busy
--#include begin
local others, waiting_there, over, most = 0, 0, {}, 1000
--#include waiting
local known = table.remove(processes)
for n = 1, #processes, 2 do
  local callers, watched = string.match(processes[n + 1], '^(%d+) .-(%d+)$')
  -- What lies further ahead than anybody says is from before the clock was set back.
  if tonumber(watched) <= now or tonumber(watched) > WATCHED then
    over[#over + 1] = processes[n]
  elseif processes[n] ~= ARGV[7] and callers ~= '0' then
    others, waiting_there = others + 1, waiting_there + callers
  end
end
-- Of very many some were looked at.
if #processes > 0 then waiting_there = math.ceil(waiting_there * known * 2 / #processes) end
local taken = call('ZCARD', M .. ':taken')
if ARGV[6] == '' and (taken > 0 or waiting_there + ARGV[8] > 0) then
--#include flush
  return { taken, waiting_there + ARGV[8] }
end
-- None of those that were looked at waits any more: perhaps one of the others does.
if ARGV[6] == '' and known > #processes / 2 then
  many('HDEL', M .. ':waiting', over)
--#include flush
  return redis.error_reply('AGAIN there is more to do first')
end
for _, name in ipairs(call('ZRANGE', M .. ':sealed', 0, -1)) do
  local chunks = call('HGET', M .. ':written:' .. name, 'chunks')
  local keys = {}
  for chunk in string.gmatch(chunks or '', '(%S+) %S+ %S+ %S+') do keys[#keys + 1] = M .. ':staged:' .. chunk end
  keys[#keys + 1] = M .. ':written:' .. name
  many('UNLINK', M .. ':sealed', keys)
end
for part in string.gmatch(PARTS, '%a+') do
  call('UNLINK', M .. ':' .. part)
end
call('UNLINK', M)
if listening then redis.pcall('PUBLISH', M .. ':events', 'gone') end
-- A marker for each other process that waits, a thousand at most: it finds no tube.
local markers = {}
for n = 1, others do markers[2 * n - 1], markers[2 * n] = 0, n end
for _, key in ipairs({ M .. ':marker', M .. ':room' }) do
  many('ZADD', key, markers)
  if others > 0 then call('PEXPIRE', key, 1000) end
end
