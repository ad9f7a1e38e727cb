-- Find the sessions that hold tasks for streams: the ttr of these tasks does not run.
-- ARGV  3 the cursor ('0': the beginning)
-- reply  {the next cursor, numbers of sessions}
local pattern = string.gsub(M, '[%[%]?*\\]', '\\%0') .. ':stream:*'
local some = call('SCAN', ARGV[3], 'MATCH', pattern, 'COUNT', 1000)
local sessions = {}
for _, key in ipairs(some[2]) do
  if call('TYPE', key).ok == 'hash' then
    local about = call('HGETALL', key)
    for n = 1, #about, 2 do
      if string.match(about[n], '%.by$') then sessions[#sessions + 1] = tonumber(about[n + 1]) end
    end
  end
end
return { some[1], sessions }
