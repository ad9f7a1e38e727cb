-- End a pause.
-- reply  nothing
--#include begin
if replayed then return end
call('HDEL', M, 'paused')
--#done ''
return
