-- Purpose: make the keys of slots outlast the permit, and expire at one instant: a bit map must not outlive the permits
-- that its bits stand for. They last twice the lease, so that not every call must lengthen them. Keys end at a whole
-- millisecond, permits at a fraction of one: so the keys must last for a millisecond more. Uses KEYS[1], KEYS[4],
-- KEYS[5], now, ARGV[3] lease, ms. Sets lengthened: true if this call lengthened them.
local lengthened = redis.call('pttl', KEYS[1]) < ARGV[3] + 1
if lengthened then
  for _, key in ipairs({KEYS[1], KEYS[4], KEYS[5]}) do redis.call('pexpireat', key, math.floor(now + 2 * ARGV[3])) end
end
