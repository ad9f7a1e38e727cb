-- Ack a held task, and store its result, which is kept as long as the task.
-- ARGV  6, 7, 8 as for ack, 9 the result
-- reply  the task as `encode_task` encodes it
--#include begin
--#include find_held
task.result = ARGV[9]
--#move ack t
--#include return_task
