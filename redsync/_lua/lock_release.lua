-- Purpose: set the hold count of a reentrant, fair or fenced lock, for people to read. At 0 release that lock, or a
-- mutex: delete it, and hand it over to the next waiter. Idempotent: a lock that is not ours does not change.
-- KEYS[1] lock: hash claim -> hold count; or mutex: string
-- KEYS[2] queue: zset owner -> arrival ms, or ticket of a fair lock
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] hold count
-- ARGV[3] Redisson's channel, on which to announce the release of a lock, except on a voter of a cluster
-- Reply: 1 this node had our claim | 0 it did not
if ARGV[2] ~= '0' then
  if redis.pcall('hexists', KEYS[1], ARGV[1]) ~= 1 then return 0 end
  -- A node out of memory may refuse the new count. That is harmless: each later count is set as a whole, 0 is a HDEL.
  redis.pcall('hset', KEYS[1], ARGV[1], ARGV[2])
  return 1
end
-- The claim is the hash's only field, so this deletes the lock; unless a read-write lock of Redisson came in between.
local value_type, ours = 'hash', redis.pcall('hdel', KEYS[1], ARGV[1])
if type(ours) == 'table' then
  -- Any error but that of another type means that the node did not execute this, and must get it again. An error of
  -- fakeredis comes as an object, not as a string.
  if not string.find(tostring(ours.err), 'WRONGTYPE', 1, true) then return ours end
  value_type, ours = 'string', 0
  if redis.pcall('get', KEYS[1]) == ARGV[1] then ours = redis.call('del', KEYS[1]) end
end
if ours == 0 then
  -- The owner may still have a place here, if the client did not ask this node when the others granted.
-- include: leave_queue
  return 0
end
-- include: tag
-- Redisson has no mutex, and does not use a voter's keys.
if value_type == 'hash' and tag == '' then redis.call('publish', ARGV[3], '0') end
if redis.call('exists', KEYS[2]) == 1 and redis.call('exists', KEYS[1]) == 0 then
  -- A renewal may have made the claim here while our place was still queued. Without this we would wake ourselves.
-- include: leave_queue
-- include: hand_over
end
return 1
