-- Set `best` to the first place in the lane's part of ':behind', or to false if that part is empty.
-- out: best
local best = call('ZRANGEBYLEX', M .. ':behind', '[' .. lane_key, '+', 'LIMIT', 0, 1)[1]
best = best and sub(best, 1, 5) == lane_key and sub(best, 6)
