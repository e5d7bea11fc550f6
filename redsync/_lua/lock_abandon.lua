-- Purpose: roll back an attempt: drop our claim if this node granted one, and leave the queue if we stop waiting. If
-- this node has just woken us, the script passes the wake-up on, so that it is not lost. Idempotent.
-- KEYS[1] lock: hash claim -> hold count   KEYS[2] queue: zset owner -> arrival ms, or ticket of a fair lock
-- KEYS[3] places: hash owner -> "expiry number mark guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] 1: leave the queue too; 0: continue waiting
-- Reply: 1 this node had our claim | 0 it did not
local had = redis.pcall('hexists', KEYS[1], ARGV[1]) == 1
if had then redis.call('del', KEYS[1]) end

if ARGV[2] == '1' then
-- include: leave_queue
  if redis.call('exists', KEYS[1]) == 0 then
-- include: grant_lock
-- include: hand_over
  end
else
-- include: keep_place
end
return had and 1 or 0
