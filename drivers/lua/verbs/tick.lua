-- Process due tasks and lanes, and nothing else.
-- reply  the next due time (0: none)
--#include begin
--#include flush
return soonest or 0
