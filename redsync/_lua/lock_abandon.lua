-- Purpose: roll back an attempt at a lock or mutex: drop our claim if this node granted one, and leave the queue if we
-- stop waiting. If so, a lock that was ours is handed over. Of a free one the script only wakes the next waiter, because
-- this node may have just woken us: it does not know any more whether it is a lock or a mutex. Idempotent.
-- KEYS[1] lock: hash claim -> hold count; or mutex: string
-- KEYS[2] queue: zset owner -> arrival ms, or ticket of a fair lock
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] 1: leave the queue too; 0: continue waiting
-- ARGV[3] Redisson's channel, on which to announce that a lock is free, except on a voter of a cluster
-- Reply: 1 this node had our claim | 0 it did not
local value_type = redis.call('type', KEYS[1]).ok
local had = value_type == 'hash' and redis.call('hdel', KEYS[1], ARGV[1]) == 1
if value_type == 'string' and redis.call('get', KEYS[1]) == ARGV[1] then had = redis.call('del', KEYS[1]) == 1 end
-- include: tag
if had and value_type == 'hash' and tag == '' then redis.call('publish', ARGV[3], '0') end

if ARGV[2] == '1' then
-- include: leave_queue
  if redis.call('exists', KEYS[1]) == 0 then
-- include: hand_over
  end
else
-- include: keep_place
end
return had and 1 or 0
