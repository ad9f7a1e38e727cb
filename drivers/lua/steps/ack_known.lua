-- Ack the task of ARGV[6], whose facts the caller has: ARGV 8 and 9 describe it, as for ack.
--#flat
task.id = ARGV[6]
--#if TIMED
task.ttr = ARGV[8] == '3'
--#end
--#if LANE
task.lane = ARGV[9]
--#end
--#move ack t quiet
