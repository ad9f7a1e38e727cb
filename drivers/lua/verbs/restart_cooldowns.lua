-- Restart the cooldown of lanes whose last start is in the future because the clock was set back: some per call.
-- ARGV  6 the cursor; 0: the beginning
-- reply  the next cursor; 0: the end
--#include begin
call('HDEL', M, '')
local page = META.pacing and call('HSCAN', M .. ':lanes', ARGV[6], 'COUNT', 50) or { '0', {} }
for n = 1, #page[2], 2 do
  lane = page[2][n]
  read_pace(0)
  if pace.at > now then
    update_cooldown()
    write_pace()
  end
end
--#include flush
return tonumber(page[1])
