-- Purpose: give back one hold of the read lock. The count that remains is set, never subtracted; at 0 the claim is deleted,
-- and the lock handed over to the next waiters. Idempotent: a lock that is not ours stays as it is.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> until ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, less 2^52 of a writer    KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] hold count that remains   ARGV[3] not used: Redisson's channel is for locks of one holder
-- Reply: 1 this node had our claim | 0 it had not
local mode = 'r:'
-- include: read_write
-- include: read_write_release
