-- Purpose: let the keys of slots outlast the permit, and end at one instant: a bit map must not outlive the permits that its
-- bits stand for. For twice the lease, so that it need not be done each time. Uses KEYS[1], KEYS[4], KEYS[5], ARGV[3] lease.
-- Sets lengthened: whether it was done now.
local lengthened = redis.call('pttl', KEYS[1]) < tonumber(ARGV[3])
if lengthened then
  for _, key in ipairs({KEYS[1], KEYS[4], KEYS[5]}) do redis.call('pexpireat', key, now + 2 * ARGV[3]) end
end
