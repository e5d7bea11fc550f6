-- Purpose: leave the queue. A late command keeps the place if the owner has since taken it for a later claim.
-- Uses KEYS[2] queue, KEYS[3] places, ARGV[1] claim.
do
-- include: waiter
  local place = waiter and redis.call('hget', KEYS[3], waiter)
  if waiter and (not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number) then
    redis.call('zrem', KEYS[2], waiter)
    redis.call('hdel', KEYS[3], waiter)
  end
end
