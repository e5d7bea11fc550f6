-- Purpose: set the hold count of a reentrant, fair or fenced lock, for people to read; or drop our claim on it or on a
-- mutex: a release, or the rollback of an attempt. If its owner does not continue to wait, the node hands over a lock
-- that was ours. Of a free one it only wakes the next waiter, because it may have just woken us: it does not know any
-- more whether it is a lock or a mutex. Idempotent: a claim that is not ours does not change.
-- KEYS[1] lock: hash claim -> hold count; or mutex: string
-- KEYS[2] queue: zset owner -> arrival ms, or ticket of a fair lock
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim: "<owner>:<number>"
-- ARGV[2] hold count; 0: drop the claim, and leave the queue; -1: drop it, but continue waiting
-- ARGV[3] Redisson's channel, on which to announce that a lock is free, except on a voter of a cluster
-- Reply: 1 this node had our claim | 0 it did not
if tonumber(ARGV[2]) > 0 then
  if redis.pcall('hexists', KEYS[1], ARGV[1]) ~= 1 then return 0 end
  -- A node out of memory may refuse the new count. That is harmless: each later count is set as a whole, 0 is a HDEL.
  redis.pcall('hset', KEYS[1], ARGV[1], ARGV[2])
  return 1
end
local value_type = redis.call('type', KEYS[1]).ok
local had = value_type == 'hash' and redis.call('hdel', KEYS[1], ARGV[1]) == 1
if value_type == 'string' and redis.call('get', KEYS[1]) == ARGV[1] then had = redis.call('del', KEYS[1]) == 1 end
-- include: tag
-- Redisson has no mutex, and does not use a voter's keys.
if had and value_type == 'hash' and tag == '' then redis.call('publish', ARGV[3], '0') end
if ARGV[2] == '-1' then
-- include: keep_place
elseif not had or redis.call('exists', KEYS[2]) == 1 then
  -- Even if we had the claim, as a renewal may have made it while our place was queued: else we would wake ourselves.
  -- Even if there is no queue and no claim: a node that refuses to write must reply with an error, and get this again.
-- include: leave_queue
  -- Our claim was the hash's only field, unless a read-write lock of Redisson came in between.
  if redis.call('exists', KEYS[1]) == 0 then
-- include: hand_over
  end
end
return had and 1 or 0
