-- Purpose: remove the place of a waiter that no longer waits for a count-down latch. Idempotent.
-- KEYS[1] latch, not used   KEYS[2] waiters: zset "channel owner:number" -> expiry, ms
-- ARGV[1] the waiter, "channel owner:number"
-- Reply: 1 it had a place | 0 it had none
return redis.call('zrem', KEYS[2], ARGV[1])
