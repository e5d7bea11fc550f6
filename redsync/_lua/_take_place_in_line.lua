-- Purpose: take the place of a ticket, or keep it for longer. Uses KEYS[2] queue, KEYS[3] places, waiter, ARGV[5] how
-- long to keep it, ms, ARGV[6] ticket, ARGV[7] wake channel, now, and wants: how many slots.
redis.call('zadd', KEYS[2], ARGV[6], waiter)
redis.call('hset', KEYS[3], waiter, string.format('%.0f ', now + ARGV[5]) .. wants .. ' ' .. ARGV[7])
if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
  redis.call('pexpire', KEYS[2], ARGV[5])
  redis.call('pexpire', KEYS[3], ARGV[5])
end
