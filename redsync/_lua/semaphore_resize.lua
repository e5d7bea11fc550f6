-- Purpose: write down a limit, unless this node knows a newer one, and wake those for whom there is room then. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset permit -> ticket
-- KEYS[3] places: hash permit -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits"
-- ARGV[1] the limit's version   ARGV[2] the limit   ARGV[3] 1: a quorum has this one, so it also replaces another one of the
--        same version
-- Reply: {version, limit} that this node knows now
-- include: slots
-- include: line
local version, permits = string.match(redis.call('get', KEYS[6]) or '', '^(%d+) (%d+)$')
version, permits = tonumber(version), tonumber(permits)
local wanted = tonumber(ARGV[1])
if version and (version > wanted or (version == wanted and (permits == tonumber(ARGV[2]) or ARGV[3] ~= '1'))) then
  return {version, permits}
end
if wanted == 0 then
  redis.call('set', KEYS[6], '0 ' .. ARGV[2], 'px', 86400000)
else
  redis.call('set', KEYS[6], ARGV[1] .. ' ' .. ARGV[2])
end
freed = permits and ARGV[2] - permits or 0
-- include: wake_line
return {wanted, tonumber(ARGV[2])}
