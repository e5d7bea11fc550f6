-- Purpose: write a limit, unless it is void or this node knows a newer one, and wake the waiters that now fit in.
-- Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] the limit's version   ARGV[2] the limit
-- ARGV[3] 1: a quorum has this limit, so it also replaces another limit of the same version
-- ARGV[4] only for a rate limiter: its window, us
-- Reply: {version, limit} that this node now knows; {-1, 0}: none
-- include: slots
-- include: limit
-- include: line
local limit = ARGV[1] .. ' ' .. ARGV[2] .. (ARGV[4] and ' ' .. ARGV[4] or '')
local its_limit, version, permits = read_limit(KEYS[6])
local wanted = tonumber(ARGV[1])
local known = version and (version > wanted or version == wanted and (its_limit == limit or ARGV[3] ~= '1'))
if known or is_void(wanted) then return {version or -1, permits or 0} end
write_limit(KEYS[6], limit, wanted, math.ceil((ARGV[4] or 0) / 1000))
freed = permits and ARGV[2] - permits or 0
local queued = freed > 0 and redis.call('exists', KEYS[2]) == 1
-- include: wake_line
return {wanted, tonumber(ARGV[2])}
