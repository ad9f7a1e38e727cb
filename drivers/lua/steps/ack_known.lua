-- Ack the task of ARGV[6], whose facts the caller has: ARGV 8 and 9 describe it, as for ack.
-- in: nothing
--#flat
task.id = ARGV[6]
task.ttr = ARGV[8] == '3'  --#if TIMED
task.lane = ARGV[9]  --#if LANE
--#move ack t quiet
