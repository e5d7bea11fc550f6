-- Purpose: release a mutex (compare and delete), and hand it over to the next waiter. Idempotent: a mutex that is not
-- ours does not change.
-- KEYS[1] mutex: string   KEYS[2] queue: zset owner -> arrival ms
-- KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] value   ARGV[2], ARGV[3] not used: a mutex has no hold count, and Redisson has no channel for it
-- Reply: 1 this node had our claim | 0 it did not
if redis.pcall('get', KEYS[1]) ~= ARGV[1] then
  -- The owner may still have a place here, if the client did not ask this node when the others granted.
-- include: leave_queue
  return 0
end
redis.call('del', KEYS[1])
if redis.call('exists', KEYS[2]) == 1 then
  -- A renewal may have made the claim here while our place was still queued. Without this we would wake ourselves.
-- include: leave_queue
-- include: grant_mutex
-- include: hand_over
end
return 1
