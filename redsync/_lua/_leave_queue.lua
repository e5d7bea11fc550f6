-- Purpose: give up the place in the queue. A command that comes late leaves the place alone that its owner has taken since for
-- a later claim. Uses KEYS[2] queue, KEYS[3] places, ARGV[1] claim.
do
-- include: waiter
  local place = waiter and redis.call('hget', KEYS[3], waiter)
  if waiter and (not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number) then
    redis.call('zrem', KEYS[2], waiter)
    redis.call('hdel', KEYS[3], waiter)
  end
end
