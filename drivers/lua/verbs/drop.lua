-- Remove the tube and all that is in it.
-- ARGV  6 '1': although tasks are taken or callers wait, 7 the process, 8 how many wait in it
-- answers  nothing, or {how many tasks are taken, how many callers wait} if it is busy
--#include begin
local others, waiting_there = 0, 0
local processes = call('HGETALL', M .. ':waiting')
for n = 1, #processes, 2 do
  local callers, watched = string.match(processes[n + 1], '(%d+) (%d+)')
  if processes[n] ~= ARGV[7] and tonumber(watched) > now then
    others, waiting_there = others + 1, waiting_there + callers
  end
end
local taken = call('ZCARD', M .. ':taken')
if ARGV[6] == '' and (taken > 0 or waiting_there + ARGV[8] > 0) then
--#include flush
  return { taken, waiting_there + ARGV[8] }
end
for _, name in ipairs(call('ZRANGE', M .. ':sealed', 0, -1)) do
  local chunks = call('HGET', M .. ':written:' .. name, 'chunks')
  for chunk in string.gmatch(chunks or '', '(%S+) %S+ %S+ %S+') do call('UNLINK', M .. ':staged:' .. chunk) end
  call('UNLINK', M .. ':written:' .. name)
end
for _, key in ipairs({ 'tasks', 'ready', 'taken', 'due', 'buried', 'back', 'offers', 'behind', 'lanes', 'rests', 'keys', 'seen', 'leases', 'waiting', 'marker', 'room', 'sealed' }) do
  call('UNLINK', M .. ':' .. key)
end
call('UNLINK', M)
-- A marker for every other process that waits: it finds no tube.
for n = 1, others do
  call('ZADD', M .. ':marker', 0, n)
  call('ZADD', M .. ':room', 0, n)
end
if others > 0 then
  call('PEXPIRE', M .. ':marker', 1000)
  call('PEXPIRE', M .. ':room', 1000)
end
