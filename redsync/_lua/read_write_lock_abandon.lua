-- Purpose: roll back an attempt to read or to write: drop our claim if this node granted one, and leave the queue if we
-- stop waiting, after which it may be the turn of waiters behind us. Idempotent.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim and its mode: "r:<owner>:<number>" or "w:<owner>:<number>"
-- ARGV[2] 1: leave the queue too; 0: continue waiting
-- Reply: 1 this node had our claim | 0 it did not
-- include: read_write_claims
-- A node that refuses to write must reply with an error: else the client would not send the rollback again.
local had = type(redis.pcall('zscore', KEYS[1], ARGV[1])) == 'string'
if had then redis.call('zrem', KEYS[1], ARGV[1]) end
if ARGV[2] == '1' then
-- include: leave_queue
  -- The waiter that leaves may have kept others waiting, or this node may have just woken it.
  if type(redis.pcall('zcard', KEYS[1])) == 'number' then hand_over() end
else
-- include: keep_place
end
return had and 1 or 0
