-- The functions of the library: the one list from which a server registers them, and from which Python knows their
-- replies and rights. Each row: name, function, types of the reply, traits, fields of the meta hash that it reads.
--
-- Traits:
--   tube     belongs to no session: it gets KEYS[1] and ARGV as they are (others begin with `Call.begin`)
--   alone    uses no other key than KEYS[1], which is not the meta hash of a tube
--   reads    writes nothing, so a replica runs it
--   adds     needs memory: a full server refuses it before it starts
--   replays  a repeated call gets the stored reply; without this trait the function looks at `Call.replayed` itself
--   held     has no effect after the session has ended
--   early    does not process due tasks first, for a client that may only read
--   once     may have run before its session ended, if the call was sent twice
local Call = require 'call'
local Bulk = require 'bulk'
local Checks = require 'checks'
local Done = require 'done'
local Engine = require 'engine'
local Keys = require 'keys'
local Many = require 'many'
local Reads = require 'reads'
local Sessions = require 'sessions'
local Timers = require 'timers'
local Tube = require 'tube'
local Waiting = require 'waiting'

local Functions = {}
local LIST = {
  -- One task.
  { 'put', Engine.put, 'none bytes', 'adds replays once', 'next' },
  { 'take', Engine.take, 'bytes number', 'once', 'paused takes' },
  { 'next', Engine.next, 'bytes', 'once', 'paused takes acks' },
  { 'take_task', Engine.take_task, 'bytes', 'once', 'paused takes next' },
  { 'first', Engine.first, 'bytes', '', 'paused next' },
  { 'ack', Engine.ack, 'bytes number', 'held once', 'acks' },
  { 'ack_with', Engine.ack_with, 'bytes', 'replays held once', 'acks' },
  { 'release', Engine.release, 'bytes', 'replays held', '' },
  { 'decline', Engine.decline, 'bytes', 'replays held', '' },
  { 'touch', Engine.touch, 'bytes', 'replays held', '' },
  { 'set_ttr', Engine.set_ttr, 'bytes', 'replays held', '' },
  { 'checkpoint', Engine.checkpoint, 'bytes', 'replays held', '' },
  { 'bury', Engine.bury, 'bytes', 'replays once', 'next' },
  { 'kick_task', Engine.kick_task, 'bytes', 'replays once', 'next' },
  { 'delete', Engine.delete, 'bytes', 'replays once', 'next' },
  { 'cancel', Engine.cancel, 'bytes', 'replays once', 'next' },
  { 'update', Engine.update, 'bytes', 'replays once', 'next' },
  { 'act_some', Engine.act_some, 'bytes', 'replays once', 'next' },
  { 'undo_take', Engine.undo_take, 'none', 'replays held', 'takes' },
  { 'undo_put', Engine.undo_put, 'none', 'held', 'next' },
  { 'disarm', Engine.disarm, 'none', 'replays held', 'takes' },
  { 'forget_key', Keys.forget_key, 'bytes', 'replays', '' },
  -- Many tasks.
  { 'put_many', Many.put_many, 'none bytes', 'adds replays once', 'next lanes' },
  { 'put_keyed', Many.put_keyed, 'none list', 'adds once', 'next' },
  { 'put_limited', Many.put_limited, 'none list', 'adds once', 'next' },
  { 'put_again', Many.put_again, 'none list', 'adds once', 'next' },
  { 'take_many', Many.take_many, 'list', 'once', 'paused takes next' },
  { 'take_for', Many.take_for, 'list', 'once', 'paused takes next' },
  { 'ack_many', Many.ack_many, 'bytes', 'replays held once', 'acks' },
  { 'release_many', Many.release_many, 'bytes', 'replays held', '' },
  { 'renew_many', Many.renew_many, 'bytes', 'replays held', '' },
  { 'delete_many', Many.delete_many, 'bytes', 'replays once', 'next' },
  { 'evict', Many.evict, 'bytes', 'replays', 'next' },
  { 'relay', Many.relay, 'bytes', 'adds replays', 'next' },
  -- Reads.
  { 'peek', Reads.peek, 'bytes', '', '' },
  { 'peek_many', Reads.peek_many, 'list', '', '' },
  { 'by_state', Reads.by_state, 'list', '', 'next' },
  { 'tasks', Reads.tasks, 'list', '', 'next' },
  { 'ended', Done.ended, 'list', '', 'next' },
  { 'reasons', Reads.reasons, 'list', '', '' },
  { 'statistics', Reads.statistics, 'list', '', '' },
  { 'due', Reads.due, 'list', '', '' },
  { 'oldest', Reads.oldest, 'none bytes number', '', 'next' },
  { 'age', Reads.oldest, 'none bytes number', 'early', 'next' },
  { 'lanes', Reads.lanes, 'list', '', '' },
  { 'overview', Reads.overview, 'list', 'tube reads', '' },
  -- The tube.
  { 'alter', Tube.alter, 'none', 'replays', '' },
  { 'pause', Tube.pause, 'bytes', 'replays', '' },
  { 'resume', Tube.resume, 'none', 'replays', '' },
  { 'limit_lane', Tube.limit_lane, 'none', 'replays', '' },
  { 'restart_cooldowns', Tube.restart_cooldowns, 'number', '', '' },
  { 'trim_done', Done.trim_done, 'number', '', '' },
  { 'truncate', Tube.truncate, 'none', 'replays', 'next' },
  { 'drop', Tube.drop, 'none list', '', '' },
  { 'tick', Timers.tick, 'number', '', '' },
  { 'describe', Tube.describe, 'none list', 'tube reads', '' },
  { 'damage', Tube.damage, 'none', 'tube', '' },
  { 'tube_drivers', Tube.tube_drivers, 'list', 'tube reads', '' },
  { 'tube_names', Tube.tube_names, 'none list', 'tube alone', '' },
  { 'ping', Tube.ping, 'bytes', 'tube alone reads', '' },
  { 'rate', Tube.rate, 'number', 'tube alone', '' },
  { 'trial', Tube.trial, 'bytes', 'tube reads', '' },
  -- Sessions and waiting.
  { 'open', Sessions.open, 'list', 'tube', '' },
  { 'session', Sessions.session, 'none list', 'tube alone', '' },
  { 'heartbeat', Sessions.heartbeat, 'list', 'tube', '' },
  { 'leave', Sessions.leave, 'none', 'held', '' },
  { 'release_all', Sessions.release_all, 'none', 'replays', '' },
  { 'listen', Sessions.listen, 'number', '', '' },
  { 'wake', Waiting.wake, 'none', 'tube', '' },
  { 'wake_at_due', Waiting.wake_at_due, 'number', 'tube', '' },
  -- Bulk clients.
  { 'upload_words', Bulk.upload_words, 'none', 'tube adds', '' },
  { 'write_stage', Bulk.write_stage, 'bytes', 'tube adds', '' },
  { 'write_keep', Bulk.write_keep, 'number', 'tube', '' },
  { 'write_seal', Bulk.write_seal, 'none bytes', 'tube adds', '' },
  { 'write_done', Bulk.write_done, 'number', 'tube', '' },
  { 'write_others', Bulk.write_others, 'none list', 'tube', '' },
  { 'write_clean', Bulk.write_clean, 'number', 'tube', '' },
  { 'stream_open', Bulk.stream_open, 'bytes', 'replays', 'born' },
  { 'stream_take', Bulk.stream_take, 'none bytes', '', 'paused takes next' },
  { 'stream_retake', Bulk.stream_retake, 'none bytes', '', 'paused takes next' },
  { 'stream_ack', Bulk.stream_ack, 'bytes', 'replays', 'acks next' },
  { 'stream_return', Bulk.stream_return, 'bytes', 'replays', '' },
  { 'stream_skip', Bulk.stream_skip, 'none', 'tube', '' },
  { 'stream_slots', Bulk.stream_slots, 'none', 'tube', '' },
  { 'extent', Bulk.extent, 'none list', 'tube reads', '' },
  { 'scan_ids', Bulk.scan_ids, 'list', 'tube reads', '' },
  { 'task_headers', Bulk.task_headers, 'none list', 'tube reads', '' },
  -- Checks.
  { 'check_meta', Checks.check_meta, 'list', 'tube', '' },
  { 'check_ids', Checks.check_ids, 'list', 'tube', '' },
  { 'check_tasks', Checks.check_tasks, 'list', 'tube', '' },
  { 'check_index', Checks.check_index, 'list', 'tube', '' },
  { 'check_lanes', Checks.check_lanes, 'list', 'tube', '' },
  { 'check_takes', Checks.check_takes, 'list', 'tube', '' },
  { 'check_streams', Checks.check_streams, 'list', 'tube', '' },
  { 'check_end', Checks.check_end, 'list', 'tube', '' },
}

-- The commands that the functions run, by their least number of arguments, the key first: a server is asked with as many
-- if a user may run them. And the commands that every session needs. PUBLISH and SPUBLISH are not among them: messages are
-- only sent if that is allowed.
Functions.COMMANDS = {
  DEL = 1, EXISTS = 1, HDEL = 2, HEXISTS = 2, HGET = 2, HGETALL = 1, HINCRBY = 3, HKEYS = 1, HLEN = 1, HMGET = 2,
  HRANDFIELD = 1, HSCAN = 2, HSET = 3, HSTRLEN = 2, HVALS = 1, LINDEX = 2, LLEN = 1, LPOP = 1, LPOS = 2, LPUSH = 2,
  LRANGE = 3, LREM = 3, LSET = 3, PEXPIRE = 2, PTTL = 1, RPOP = 1, RPUSH = 2, SADD = 2, SCAN = 1, SCARD = 1,
  SISMEMBER = 2, SMEMBERS = 1, SRANDMEMBER = 1, SREM = 2, SSCAN = 2, TIME = 0, TYPE = 1, UNLINK = 1, ZADD = 3,
  ZCARD = 1, ZCOUNT = 3, ZLEXCOUNT = 3, ZMSCORE = 2, ZPOPMIN = 1, ZRANGE = 3, ZRANGEBYLEX = 3, ZRANGEBYSCORE = 3,
  ZREM = 2, ZREMRANGEBYSCORE = 3, ZSCAN = 2, ZSCORE = 2,
}
Functions.NEEDED = {
  EXISTS = true, HDEL = true, HEXISTS = true, HGET = true, HINCRBY = true, HLEN = true, HMGET = true,
  HRANDFIELD = true, HSCAN = true, HSET = true, LPOP = true, PEXPIRE = true, PTTL = true, TIME = true,
  UNLINK = true, ZADD = true, ZCARD = true, ZCOUNT = true, ZMSCORE = true, ZRANGE = true, ZRANGEBYLEX = true,
  ZRANGEBYSCORE = true, ZREM = true, ZSCORE = true,
}

for _, row in ipairs(LIST) do
  local name, act, kinds, traits, fields = unpack(row)
  local method = { name = name, act = act, fields = {}, silent = kinds == 'none' }
  for trait in string.gmatch(traits, '%S+') do method[trait] = true end
  for field in string.gmatch(fields, '%S+') do method.fields[#method.fields + 1] = field end
  method.takes = string.find(fields, 'takes', 1, true)  -- It needs `Call.take`.
  Functions[name] = method
end

-- Run a function with the keys and the arguments of a call; return its reply.
function Functions.run(name, keys, args)
  local method = Functions[name]
  if method.tube then
    if keys[1] then Call.open(keys[1]) end
    return method.act(args)
  end
  local refusal = Call.begin(method, keys[1], args)
  if refusal then return refusal end
  if method.replays and Call.replayed then
    Call.finish()
    return not method.silent and Call.replayed or nil
  end
  local reply, stored = method.act(args)
  if not method.early then Call.finish(stored) end
  return reply
end

return Functions
