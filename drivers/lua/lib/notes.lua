-- What the meta hash is to know when the verb is done.
local function note(field, value)
  noted[notes + 1], noted[notes + 2] = field, value
  notes = notes + 2
end

local takes = tonumber(META.takes or 0)

local function count_takes(by)
  takes = takes + by
  note('takes', takes)
end

local acks = tonumber(META.acks or 0)

local function count_acks(by)
  acks = acks + by
  note('acks', acks)
end
