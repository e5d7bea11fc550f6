-- Purpose: keep the place of an attempt that rolls back, but hand nothing over to it before it asks again: the rollback
-- would also undo a hand-over to the old claim. A node that can't write this deletes the place.
-- Uses KEYS[2] queue, KEYS[3] places, ARGV[1] claim.
do
-- include: waiter
  local place = redis.call('hget', KEYS[3], waiter) or ''
  local until_ms, of, rest = string.match(place, '^(%d+) (%d+) %S+ (.*)$')
  if until_ms and tonumber(of) <= number
      and type(redis.pcall('hset', KEYS[3], waiter, until_ms .. ' ' .. of .. ' 0 ' .. rest)) == 'table' then
    redis.call('zrem', KEYS[2], waiter)
    redis.call('hdel', KEYS[3], waiter)
  end
end
