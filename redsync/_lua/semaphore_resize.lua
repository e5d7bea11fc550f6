-- Purpose: write down a limit, unless this node knows a newer one, and wake those for whom there is room then. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset permit -> ticket
-- KEYS[3] places: hash permit -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] the limit's version   ARGV[2] the limit   ARGV[3] 1: a quorum has this one, so it also replaces another one of the
--        same version   ARGV[4] only of a rate limiter: its window, us
-- Reply: {version, limit} that this node knows now
-- include: slots
-- include: line
local limit = ARGV[1] .. ' ' .. ARGV[2] .. (ARGV[4] and ' ' .. ARGV[4] or '')
local its_limit = redis.call('get', KEYS[6])
local version, permits = string.match(its_limit or '', '^(%d+) (%d+)')
version, permits = tonumber(version), tonumber(permits)
local wanted = tonumber(ARGV[1])
if version and (version > wanted or (version == wanted and (its_limit == limit or ARGV[3] ~= '1'))) then
  return {version, permits}
end
if wanted == 0 then
  redis.call('set', KEYS[6], limit, 'px', math.ceil(math.max(86400000, (ARGV[4] or 0) / 500)))
else
  redis.call('set', KEYS[6], limit)
end
freed = permits and ARGV[2] - permits or 0
-- include: wake_line
return {wanted, tonumber(ARGV[2])}
