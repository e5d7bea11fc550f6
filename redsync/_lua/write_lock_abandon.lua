-- Purpose: roll back an attempt to write: drop our claim if this node granted one, and leave the queue if we stop
-- waiting, after which it may be the turn of waiters behind us. Idempotent.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] 1: leave the queue too; 0: continue waiting
-- Reply: 1 this node had our claim | 0 it did not
local mode = 'w:'
-- include: read_write
-- include: read_write_abandon
