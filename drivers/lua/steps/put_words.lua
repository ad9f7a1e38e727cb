-- The words of the tasks to put, from index `at` on: ARGV[12...], or the uploaded list ARGV[7] of ARGV[8] words.
-- out: words, at
local words, at = ARGV, 12
if ARGV[7] ~= '' then
  words, at = {}, 1
  local parts = call('LRANGE', M .. ':staged:' .. ARGV[7], 0, -1)
  for n = 1, #parts do
    local part = cmsgpack.unpack(parts[n])
    if #parts == 1 then words = part else for k = 1, #part do words[#words + 1] = part[k] end end
  end
  if #words ~= ARGV[8] + 0 then return redis.error_reply('STAGEGONE the uploaded tasks are gone') end
end
