-- Purpose: undo an attempt at writing: drop our claim if this node granted one, and leave the queue when we stop waiting; then
-- those who waited behind us may have their turn. Idempotent.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> until ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, less 2^52 of a writer    KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] 1: leave the queue too; 0: go on waiting
-- Reply: 1 this node had our claim | 0 it had not
local mode = 'w:'
-- include: read_write
-- include: read_write_abandon
