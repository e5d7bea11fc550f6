-- Purpose: remove one claim on a lock or mutex, and hand the freed lock over to the next waiter. Idempotent. A late
-- call is harmless, because it names the claim to remove.
-- KEYS[1] lock: hash, or mutex: string    KEYS[2] queue: zset owner -> rank
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] the claim of any owner   ARGV[2] the type of value to remove: hash | string
-- ARGV[3] Redisson's channel, on which to announce the release, except on a voter of a cluster
-- Reply: 1 that claim held it | 0 it did not | -1 the key holds another type, no change
local value_type = redis.call('type', KEYS[1]).ok
if value_type == 'none' then return 0 end
if value_type ~= ARGV[2] then return -1 end
local holder = value_type == 'hash' and redis.call('hkeys', KEYS[1])[1] or redis.call('get', KEYS[1])
if holder ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
-- include: tag
-- Redisson does not use a voter's keys.
if tag == '' then redis.call('publish', ARGV[3], '0') end
-- A holder that had waited for the lock has kept its place at the head.
-- include: leave_queue
-- include: hand_over
return 1
