-- Return the facts of `task`; ARGV 8 '1': without its data, which the caller has.
-- in: task
local reply = encode_task(task, ARGV[8] ~= '')
--#done reply
return reply
