-- Purpose: take a lock or mutex away from whoever holds it, and hand it over to the next waiter. Called twice
-- it takes it away from that one too.
-- KEYS[1] lock: hash, or mutex: string    KEYS[2] queue: zset owner -> rank    KEYS[3] places: hash owner -> "expiry mark guard channel"
-- ARGV[1] Redisson's channel, told of the release   ARGV[2] the type of value to take away: hash | string
-- Reply: 1 it was held | 0 it was free | -1 the key holds another type, nothing was changed
local kind = redis.call('type', KEYS[1]).ok
if kind == 'none' then return 0 end
if kind ~= ARGV[2] then return -1 end
local holder = kind == 'hash' and redis.call('hkeys', KEYS[1])[1] or redis.call('get', KEYS[1])
redis.call('del', KEYS[1])
redis.call('publish', ARGV[1], '0')
-- Who waited for it has kept its place, at the head.
redis.call('zrem', KEYS[2], holder)
redis.call('hdel', KEYS[3], holder)
if kind == 'hash' then
-- include: grant_lock
-- include: hand_over
else
-- include: grant_mutex
-- include: hand_over
end
return 1
