-- Leaves `best`, the place of the best task behind others in the lane, if there is one.
local best = call('ZRANGEBYLEX', M .. ':behind', '[' .. lane_key, '+', 'LIMIT', 0, 1)[1]
best = best and sub(best, 1, 5) == lane_key and sub(best, 6)
