-- Chance that can be repeated: as in chance.py, number for number.

local function random_of(seed, id, attempts)
  local modulus = 2147483647
  local state = (seed % modulus * 16807 + id % modulus + 1) % modulus
  state = (state * 48271 + attempts * 69621 + 1) % modulus
  return state * 16807 % modulus * 16807 % modulus / modulus
end

-- A span, longer by up to this fraction of it; shorter where the fraction is negative.
local function varied(span, fraction, seed, id, attempts)
  if fraction == 0 then return span end
  return math.floor(span * (1 + fraction * random_of(seed, id, attempts)) + 0.5)
end
