-- Purpose: take a lock or mutex away from whoever holds it, and wake the next waiter. Idempotent.
-- KEYS[1] lock: hash, or mutex: string    KEYS[2] queue: zset owner -> rank    KEYS[3] places: hash owner -> "expiry channel"
-- ARGV[1] Redisson's channel, told of the release   ARGV[2] the type of value to take away: hash | string
-- ARGV[3] 1: those who wait are served by tickets
-- Reply: 1 it was held | 0 it was free | -1 the key holds another type, nothing was changed
local kind = redis.call('type', KEYS[1]).ok
if kind == 'none' then return 0 end
if kind ~= ARGV[2] then return -1 end
local holder = ARGV[3] == '1' and redis.call('hkeys', KEYS[1])[1]
redis.call('del', KEYS[1])
redis.call('publish', ARGV[1], '0')
if ARGV[3] == '1' then
  -- Who waited for the lock has kept its place, at the head.
  redis.call('zrem', KEYS[2], holder)
  redis.call('hdel', KEYS[3], holder)
-- include: wake_head
else
-- include: wake_next
end
return 1
