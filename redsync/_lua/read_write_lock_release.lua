-- Purpose: set the hold count of a reader or writer, for people to read; at 0 releases it: deletes the claim and hands
-- the lock over to the next waiters. Idempotent: a lock that is not ours does not change.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim and its mode: "r:<owner>:<number>" or "w:<owner>:<number>"   ARGV[2] hold count
-- ARGV[3] not used: Redisson's channel is for locks of one holder
-- Reply: 1 this node had our claim | 0 it did not
-- include: read_write_claims
local had = redis.pcall('zscore', KEYS[1], ARGV[1])
if type(had) == 'table' or not had or not is_live(had) then
  if ARGV[2] == '0' then
    -- The owner may still have a place here, if the client did not ask this node when the others granted.
-- include: leave_queue
  end
  return 0
end

if ARGV[2] ~= '0' then
  -- A node out of memory may refuse the new count. That is harmless: each later count is set as a whole, 0 is a ZREM.
  put(KEYS[1], ARGV[1], math.floor(math.abs(had)), ARGV[2])
  return 1
end
redis.call('zrem', KEYS[1], ARGV[1])
if redis.call('exists', KEYS[2]) == 1 then
  -- A renewal may have made the claim here while our place was still queued. Without this we would wake ourselves.
-- include: leave_queue
  hand_over()
end
return 1
