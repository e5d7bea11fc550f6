-- Purpose: roll back an attempt: drop our claim if this node granted one, and leave the queue if we stop waiting. We
-- may have been woken a moment ago: the script passes the wake-up on, or it would be lost. Idempotent.
-- KEYS[1] mutex: string   KEYS[2] queue: zset owner -> arrival ms
-- KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] value   ARGV[2] 1: leave the queue too; 0: go on waiting
-- Reply: 1 this node had our claim | 0 it did not have it
local had = redis.pcall('get', KEYS[1]) == ARGV[1]
if had then redis.call('del', KEYS[1]) end

if ARGV[2] == '1' then
-- include: leave_queue
  if redis.call('exists', KEYS[1]) == 0 then
-- include: grant_mutex
-- include: hand_over
  end
else
-- include: keep_place
end
return had and 1 or 0
