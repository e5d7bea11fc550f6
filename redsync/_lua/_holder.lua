-- Purpose: find the claim that keeps a lock, KEYS[1]. Ours is "<uuid>:<serial>:<number>", Redisson's "<uuid>:<thread>",
-- alone in its hash; a hash of another form is foreign. Sets holder, nil if there is no claim.
local holder = redis.call('hlen', KEYS[1]) == 1 and redis.call('hkeys', KEYS[1])[1] or ''
if not string.match(holder, ':%d+$') then holder = nil end
