-- Purpose: leave the line. The waiters behind move up by the slots that this one wanted.
-- Uses KEYS[2] queue, KEYS[3] places, ARGV[1] permit. Adds these slots to freed.
do
-- include: waiter
  local place = waiter and redis.call('hget', KEYS[3], waiter)
  if place then
    freed = freed + (string.match(place, '^%d+ (%d+) ') or 0)
    redis.call('zrem', KEYS[2], waiter)
    redis.call('hdel', KEYS[3], waiter)
  end
end
