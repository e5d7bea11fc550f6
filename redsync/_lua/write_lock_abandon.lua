-- Purpose: roll back an attempt to write: drop our claim if this node granted one, and leave the queue if we stop
-- waiting. Then it may be the turn of those behind us. Idempotent.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] 1: leave the queue too; 0: go on waiting
-- Reply: 1 this node had our claim | 0 it did not have it
local mode = 'w:'
-- include: read_write
-- include: read_write_abandon
