-- Let lanes rest anew from now on whose last start lies ahead, since the clock was set back: some per call.
-- ARGV  6 where to go on; 0: from the beginning
-- answers  where to go on; 0: nowhere, that was all
--#include begin
call('HDEL', M, '')
local page = META.pacing and call('HSCAN', M .. ':lanes', ARGV[6], 'COUNT', 50) or { '0', {} }
for n = 1, #page[2], 2 do
  lane = page[2][n]
  enter_pace(0)
  if pace.at > now then
    rest_anew()
    leave_pace()
  end
end
--#include flush
return tonumber(page[1])
