-- Reproducible random numbers, as in chance.py.
local Chance = {}

-- Return a number from 0 to 1 that depends only on the arguments.
function Chance.random_of(seed, id, attempts)
  local state = (seed % 2147483647 * 16807 + id % 2147483647 + 1) % 2147483647
  state = (state * 48271 + attempts * 69621 + 1) % 2147483647
  return state * 16807 % 2147483647 * 16807 % 2147483647 / 2147483647
end

-- Return a span longer by up to `fraction`, or shorter if it is negative.
function Chance.apply_jitter(span, fraction, seed, id, attempts)
  if fraction == 0 then return span end
  return math.floor(span * (1 + fraction * Chance.random_of(seed, id, attempts)) + 0.5)
end

return Chance
