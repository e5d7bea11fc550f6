-- Purpose: take away permits that have expired, by this node's clock alone; so many at a time that a script stays quick.
-- What is left keeps its slots a little longer, which harms nobody. Uses at_most and what _slots.lua defines. Sets foreign:
-- the key holds another type.
local expired = redis.pcall('zrangebyscore', KEYS[1], '-inf', now, 'limit', 0, at_most)
local foreign = expired.err ~= nil
if not foreign and #expired > 0 then
  local slots = redis.call('hmget', KEYS[4], unpack(expired))
  redis.call('zrem', KEYS[1], unpack(expired))
  redis.call('hdel', KEYS[4], unpack(expired))
  for i = 1, #expired do freed = freed + mark(slots[i] or '', 0) end
  tidy()
end
