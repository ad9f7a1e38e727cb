-- Find a done task that is kept, if the caller means it: leave its facts and its record. ARGV 6 and 7: as for
-- any_task.lua.
--#if KEEPS
local kept = shown_done(ARGV[6], ARGV[7] or '')
--#end
