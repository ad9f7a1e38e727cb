-- Reproducible random numbers, as in chance.py.
local function random_fraction(seed, id, attempts)
  local state = (seed % 2147483647 * 16807 + id % 2147483647 + 1) % 2147483647
  state = (state * 48271 + attempts * 69621 + 1) % 2147483647
  return state * 16807 % 2147483647 * 16807 % 2147483647 / 2147483647
end

local function with_jitter(span, fraction, seed, id, attempts)
  if fraction == 0 then return span end
  return math.floor(span * (1 + fraction * random_fraction(seed, id, attempts)) + 0.5)
end
