-- Purpose: make this node keep, for a success of a rate limiter, the slots that a quorum of nodes keeps for it, for no
-- longer than it must, and remove its owner's place in the queue. Nodes that keep the same slots choose the same ones
-- for the next asker. If others have some of these slots here, the success keeps its present ones, if any, and gets
-- these once they are free: the others may be an attempt that moves on, or a success whose time ends here a little
-- later. Otherwise the slot would look free on this node alone for the whole window, and mislead every asker. The
-- script takes nothing from others, and ends nothing early even if it comes late. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot", or nothing
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits window"
-- ARGV[1] permit   ARGV[2] its slots: "slot,slot"   ARGV[3] how long to keep them from now on, ms, with a
--        fraction
-- Reply: 1 this node keeps these slots for it | 0 it does not
-- include: slots
if not purge(4) then return 0 end
leave()
local permit, wanted, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local mine = redis.call('hget', KEYS[4], permit)
if mine and tonumber(redis.call('zscore', KEYS[1], permit)) > now + lease then
  redis.call('zadd', KEYS[1], now + lease, permit)
end
if not mine then
  redis.call('zadd', KEYS[1], now + lease, permit)
  redis.call('hset', KEYS[4], permit, '')
end
assign(permit, wanted, mine or '')
pass_on()
if not mine then keep_slots(lease) end
wake_next()
return redis.call('hget', KEYS[4], permit) == wanted and 1 or 0
