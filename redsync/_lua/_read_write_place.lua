-- Purpose: take a place in the queue, or keep it. The arrival is this node's now less the time already waited; less 2^52 for
-- a writer. Sets rank: how many wait before it, as far as that is quickly told. Uses KEYS[2] queue, KEYS[3] places, now, mode,
-- ARGV[1] owner, ARGV[4] guard, ms, ARGV[5] for how long to keep the place, ms, ARGV[6] waited so far, ms, ARGV[7] wake
-- channel, ARGV[8] mark.
local came = now - ARGV[6]
if mode == 'w:' then came = came - 2^52 end
redis.call('zadd', KEYS[2], string.format('%.0f', came), ARGV[1])
redis.call('hset', KEYS[3], ARGV[1], string.format('%.0f ', now + ARGV[5]) .. ARGV[8] .. ' ' .. ARGV[4] .. ' ' .. ARGV[7])
if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
  redis.call('pexpire', KEYS[2], ARGV[5])
  redis.call('pexpire', KEYS[3], ARGV[5])
end
local rank = redis.call('zrank', KEYS[2], ARGV[1])
