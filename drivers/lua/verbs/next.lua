-- Ack a held task, and take the next one.
-- ARGV  6 to 9 the held task, as for ack
-- reply  '1' if it was held, else '0'; then the next task as `encode_task` encodes it, if there is one
--#include begin
if replayed then
--#slow
  local done = sub(replayed, 1, 1)
  if #replayed == 1 then return done end
  local task = find_held(unpack_struct('>I8', replayed, 2), this_take)
  if task then return done .. encode_held(task) end
  return done
--#fast
end
local done, take = '0', tonumber(ARGV[7]) or -1
if take < 0 or (ARGV[8] ~= '1' and ARGV[8] ~= '3') or listening then
--#slow
  local task = find_held(ARGV[6], ARGV[7])
  if task then
    done = '1'
--#move ack t
  end
--#fast
elseif (call('ZSCORE', M .. ':taken', ARGV[6]) or -1) + 0 == ARGV[1] * TAKES + take then
  done = '1'
--#include ack_known
end
local id
--#include pop
-- nil (too many stale ids) does not mean that the tube is empty: the caller sends a take.
if not id then
--#done done
  return done
end
--#include take_popped
result = done .. result
--#done result
return result .. stored
