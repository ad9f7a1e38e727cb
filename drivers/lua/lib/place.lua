local function place(task)
  --#include place_of
  return at
end

local function id_at(at)
  local id = unpack_struct('>I6', at, #at - 5)
  return NEWEST_FIRST and 281474976710655 - id or id
end
