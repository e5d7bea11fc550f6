-- Purpose: take a read-write lock away from its writer, or from all its readers, and hand it over to the next waiters. Called
-- twice it takes it away from those too.
-- KEYS[1] holders: zset "r:<owner>" or "w:<owner>" -> until ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, less 2^52 of a writer    KEYS[3] places: hash owner -> "expiry mark guard channel"
-- ARGV[1] r: from all readers | w: from the writer
-- Reply: 1 it was held | 0 it was not | -1 the key holds another type, nothing was changed
-- include: read_write
local first, last = '(0', '+inf'
if ARGV[1] == 'w:' then first, last = '-inf', '(0' end
local held = redis.pcall('zrangebyscore', KEYS[1], first, last, 'withscores', 'limit', 0, 1)
if held.err then return -1 end
if not held[1] then return 0 end
if not string.match(held[1], '^[rw]:') then return -1 end
redis.call('zremrangebyscore', KEYS[1], first, last)
-- include: read_write_hand_over
return is_live(held[2]) and 1 or 0
