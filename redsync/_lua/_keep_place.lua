-- Purpose: keep the place of an attempt that is undone, but hand nothing over to it before it asks again: what it is handed
-- for the old claim would be undone as well. A node that can't write that down ends the place. Uses KEYS[2] queue,
-- KEYS[3] places, ARGV[1] claim.
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
