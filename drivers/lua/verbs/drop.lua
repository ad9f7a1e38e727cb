-- Remove the tube and all its tasks.
-- ARGV  6 '1': even if tasks are taken or callers wait, 7 the process, 8 how many of its callers wait
-- reply  nothing, or {the number of taken tasks, the number of waiting callers} if the tube is in use
--#include begin
local others, waiting_there, over, most = 0, 0, {}, 1000
--#include list_waiting
local known = table.remove(processes)
for n = 1, #processes, 2 do
  local callers, watched = string.match(processes[n + 1], '^(%d+) .-(%d+)$')
  -- A time further ahead than any process may set was written before the clock was set back.
  if tonumber(watched) <= now or tonumber(watched) > WATCHED then
    over[#over + 1] = processes[n]
  elseif processes[n] ~= ARGV[7] and callers ~= '0' then
    others, waiting_there = others + 1, waiting_there + callers
  end
end
-- Estimate the total from a sample if there are many processes.
if #processes > 0 then waiting_there = math.ceil(waiting_there * known * 2 / #processes) end
local taken = call('ZCARD', M .. ':taken')
if ARGV[6] == '' and (taken > 0 or waiting_there + ARGV[8] > 0) then
--#include flush
  return { taken, waiting_there + ARGV[8] }
end
-- No process of the sample still waits, but one of the others may.
if ARGV[6] == '' and known > #processes / 2 then
  many('HDEL', M .. ':waiting', over)
--#include flush
  return redis.error_reply('AGAIN call again')
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
redis.pcall('PUBLISH', M .. ':lost', '')
-- Wake each other waiting process, at most a thousand of them, which then find that the tube is gone.
local markers = {}
for n = 1, others do markers[2 * n - 1], markers[2 * n] = 0, n end
for _, key in ipairs({ M .. ':marker', M .. ':room' }) do
  many('ZADD', key, markers)
  if others > 0 then call('PEXPIRE', key, 1000) end
end
