-- Let happen what is due; nothing else.
-- answers  the next moment at which something is due (0: never)
--#include begin
--#include flush
return soonest or 0
