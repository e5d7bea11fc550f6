-- Purpose: tell who holds a reentrant lock and who waits for it; changes nothing.
-- KEYS[1] lock: hash owner -> hold count    KEYS[2] queue: zset owner -> arrival ms
-- ARGV none
-- Reply: {type of the key, remaining ms (-2 none, -1 no expiry), {owner, count}, {waiting owners, longest first}}
local kind = redis.call('type', KEYS[1]).ok
local holder = {}
if kind == 'hash' then holder = redis.call('hgetall', KEYS[1]) end
return {kind, redis.call('pttl', KEYS[1]), holder, redis.call('zrange', KEYS[2], 0, 99)}
