-- Purpose: roll back an attempt: drop our claim if this node granted one, and leave the queue if we stop waiting. If
-- this node has just woken us, the script passes the wake-up on, so that it is not lost. Idempotent.
-- KEYS[1] mutex: string   KEYS[2] queue: zset owner -> arrival ms
-- KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] value   ARGV[2] 1: leave the queue too; 0: continue waiting
-- Reply: 1 this node had our claim | 0 it did not
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
