-- Purpose: roll back an attempt: undo what this node granted, wake the waiters that now fit in, and leave the queue if
-- we stop waiting. A grant removes the waiter's place. A waiter that continues waiting gets its place again, so that no
-- other overtakes it. A limit that programs state is forgotten with the last permit under it: one failed try of a
-- program with a wrong limit must not keep the others out. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits"
-- ARGV[1] permit   ARGV[2] 0: leave the queue too; -1: continue waiting
-- ARGV[3..7] only from a waiter that keeps its place: how many slots it wants; not used; how long to keep the place,
--        ms; its ticket; wake channel
-- Reply: 1 this node had granted | 0 it had not
-- include: slots
local mine = redis.pcall('hget', KEYS[4], ARGV[1])
if type(mine) == 'string' then
  freed = drop(ARGV[1], mine)
  tidy()
  pass_on()
  local _, version = read_limit(KEYS[6])
  if version == 0 and redis.call('exists', KEYS[1]) == 0 then redis.call('del', KEYS[6]) end
end
if ARGV[3] then
  join(ARGV[3])
elseif ARGV[2] == '0' then
  leave()
end
wake_next()
return type(mine) == 'string' and 1 or 0
