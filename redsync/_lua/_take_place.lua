-- Purpose: take a place in the queue, or keep it. The arrival is this node's time less the time already waited: a
-- duration needs no common clock. A late ask changes nothing if the owner has since taken a place for a later claim.
-- Uses KEYS[2] queue, KEYS[3] places, waiter, number, ahead: ms by which it goes before others, ARGV[4] guard, ms,
-- ARGV[5] how long to keep the place, ms, ARGV[6] waited so far, ms, ARGV[7] wake channel, ARGV[8] ask id.
-- Sets rank: the number of waiters before it, including expired places, because filtering these out would take long.
local place = redis.call('hget', KEYS[3], waiter)
if not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('zadd', KEYS[2], string.format('%.0f', now - ARGV[6] - ahead), waiter)
  place = string.format('%.0f %.0f ', now + ARGV[5], number) .. ARGV[8] .. ' ' .. ARGV[4] .. ' ' .. ARGV[7]
  redis.call('hset', KEYS[3], waiter, place)
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
    redis.call('pexpire', KEYS[2], ARGV[5])
    redis.call('pexpire', KEYS[3], ARGV[5])
  end
end
rank = redis.call('zrank', KEYS[2], waiter)
