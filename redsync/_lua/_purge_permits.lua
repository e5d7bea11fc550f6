-- Purpose: take away permits that have expired, by this node's clock alone; so many at a time that a script stays quick.
-- What is left keeps its slots a little longer, which harms nobody. Uses what _slots.lua defines. Sets foreign: the key
-- holds another type; freed: how many slots are free again.
local freed = 0
local expired = redis.pcall('zrangebyscore', KEYS[1], '-inf', now, 'limit', 0, 16)
local foreign = expired.err ~= nil
if not foreign and #expired > 0 then
  local slots = redis.call('hmget', KEYS[4], unpack(expired))
  for i, permit in ipairs(expired) do freed = freed + drop(permit, slots[i]) end
  tidy()
end
