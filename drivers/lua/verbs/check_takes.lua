-- Check takes that look wrong, unless they have changed meanwhile. Takes of missing sessions are released by the next
-- call of any session; a ttr without an end starts again.
-- ARGV  3 'orphan' or 'due', 4… id and score of each
-- reply  the problems
for n = 4, #ARGV, 2 do
  local score, due = call('ZSCORE', M .. ':taken', ARGV[n]), pack('>I6', ARGV[n])
  if score and string.format('%.0f', score) == ARGV[n + 1] then
    if ARGV[3] == 'orphan' and note('orphan', ARGV[n]) then
      call('ZADD', M .. ':leases', now, string.format('s%.0f.%s.', math.floor(score / TAKES), META.born))
--#if TIMED
    elseif ARGV[3] == 'due' and not call('ZSCORE', M .. ':due', due) and note('due', ARGV[n]) then
      local task = task_of(ARGV[n] + 0)
      if task and task.ttr then call('ZADD', M .. ':due', string.format('%.0f', now + task.ttr), due) end
--#end
    end
  end
end
return found
