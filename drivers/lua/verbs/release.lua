-- Release a held task.
-- ARGV  6, 7, 8 as for ack, 9 microseconds until it is ready ('': at once; 'backoff': as the tube's backoff says),
--       10 why it is buried, if that was its last attempt ('': nobody says)
-- answers  as for ack
--#include begin
--#include held_task
local due, delay, reason = nil, ARGV[9], ARGV[10]
--#include release_one
--#include outlived
--#include reply
