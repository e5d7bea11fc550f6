-- Purpose: write a place in the queue, or keep it for longer. A late ask changes nothing if the owner has since taken a
-- place for a later claim. Uses KEYS[2] queue, KEYS[3] places, waiter, number, now, score: its rank in the queue,
-- ARGV[4] guard, ms, ARGV[5] how long to keep the place, ms, ARGV[7] wake channel, ARGV[8] ask id.
local place = redis.call('hget', KEYS[3], waiter)
if not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number then
  redis.call('zadd', KEYS[2], score, waiter)
  place = string.format('%.0f %.0f ', now + ARGV[5], number) .. ARGV[8] .. ' ' .. ARGV[4] .. ' ' .. ARGV[7]
  redis.call('hset', KEYS[3], waiter, place)
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
    redis.call('pexpire', KEYS[2], ARGV[5])
    redis.call('pexpire', KEYS[3], ARGV[5])
  end
end
