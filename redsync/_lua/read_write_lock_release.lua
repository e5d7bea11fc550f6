-- Purpose: set the hold count of a reader or writer, for people to read; or drop its claim: a release, or the rollback
-- of an attempt. If its owner does not continue to wait, it may be the turn of waiters behind it. Idempotent: a claim
-- that is not ours does not change.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim and its mode: "r:<owner>:<number>" or "w:<owner>:<number>"
-- ARGV[2] hold count; 0: drop the claim, and leave the queue; -1: drop it, but continue waiting
-- ARGV[3] not used: Redisson's channel is for locks of one holder
-- Reply: 1 this node had our claim | 0 it did not
-- include: read_write_claims
local score = redis.pcall('zscore', KEYS[1], ARGV[1])
local kept = type(score) == 'string'
local had = kept and is_live(score)
if tonumber(ARGV[2]) > 0 then
  -- A node out of memory may refuse the new count. That is harmless: each later count is set as a whole, 0 is a ZREM.
  if had then put(KEYS[1], ARGV[1], math.floor(math.abs(score)), ARGV[2]) end
  return had and 1 or 0
end
if kept then redis.call('zrem', KEYS[1], ARGV[1]) end
if ARGV[2] == '-1' then
-- include: keep_place
elseif not had or redis.call('exists', KEYS[2]) == 1 then
  -- Even if we had the claim, as a renewal may have made it while our place was queued: else we would wake ourselves.
  -- Even if there is no queue and no claim: a node that refuses to write must reply with an error, and get this again.
-- include: leave_queue
  -- This waiter may have kept others waiting, or this node may have just woken it.
  if type(redis.pcall('zcard', KEYS[1])) == 'number' then hand_over() end
end
return had and 1 or 0
