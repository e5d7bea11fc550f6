-- Purpose: take the place that a ticket stands for, or keep it for longer.
-- Uses KEYS[2] queue, KEYS[3] places, ARGV[1] owner, ARGV[5] for how long, ms, ARGV[6] ticket, ARGV[7] wake channel.
local time = redis.call('time')
redis.call('zadd', KEYS[2], ARGV[6], ARGV[1])
redis.call('hset', KEYS[3], ARGV[1], string.format('%.0f ', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[5]) .. ARGV[7])
if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
  redis.call('pexpire', KEYS[2], ARGV[5])
  redis.call('pexpire', KEYS[3], ARGV[5])
end
