-- Answer what `shown` says of the `task`; ARGV  8 '1': the caller knows its data.
local reply = shown(task, ARGV[8] ~= '')
--#done reply
return reply
