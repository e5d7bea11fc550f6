-- Purpose: take a place in the queue, or keep it. The arrival is this node's now less the time already waited; less 2^52 for
-- a writer. An ask that comes late leaves the place alone that its owner has taken since for a later claim. Sets rank: how many
-- wait before it, as far as that is quickly told. Uses KEYS[2] queue, KEYS[3] places, now, mode, waiter, number,
-- ARGV[4] guard, ms, ARGV[5] for how long to keep the place, ms, ARGV[6] waited so far, ms, ARGV[7] wake channel, ARGV[8] mark.
local place = redis.call('hget', KEYS[3], waiter)
if not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number then
  local came = now - ARGV[6]
  if mode == 'w:' then came = came - 2^52 end
  redis.call('zadd', KEYS[2], string.format('%.0f', came), waiter)
  place = string.format('%.0f %.0f ', now + ARGV[5], number) .. ARGV[8] .. ' ' .. ARGV[4] .. ' ' .. ARGV[7]
  redis.call('hset', KEYS[3], waiter, place)
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
    redis.call('pexpire', KEYS[2], ARGV[5])
    redis.call('pexpire', KEYS[3], ARGV[5])
  end
end
local rank = redis.call('zrank', KEYS[2], waiter)
