-- A done task that the caller means, if it is kept: `told`, what is answered of it. ARGV  6, 7 as for any_task.lua.
--#if KEEPS
local told = told_done(ARGV[6], ARGV[7] or '')
--#end
