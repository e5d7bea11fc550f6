-- Purpose: give up the place in the queue. If the owner has since taken a place for a later claim, a late command
-- leaves that place alone. Uses KEYS[2] queue, KEYS[3] places, ARGV[1] claim.
do
-- include: waiter
  local place = waiter and redis.call('hget', KEYS[3], waiter)
  if waiter and (not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number) then
    redis.call('zrem', KEYS[2], waiter)
    redis.call('hdel', KEYS[3], waiter)
  end
end
