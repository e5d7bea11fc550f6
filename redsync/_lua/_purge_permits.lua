-- Purpose: remove expired permits, by this node's clock alone, `at_most` per call so that a script stays quick. The
-- others keep their slots a little longer, which is harmless. If all permits have expired, the script deletes the keys
-- as a whole, however many permits there are. It passes at most 1,000 values to a command: Lua can't pass more than
-- about 8,000. Uses at_most and what _slots.lua sets. Sets foreign: the key holds another type, or readers and writers.
local first = redis.pcall('zrange', KEYS[1], 0, 0, 'withscores')
local foreign = first.err ~= nil or string.match(first[1] or '', '^[rw]:') ~= nil
-- A master expires the three keys one by one, as it comes to them, and tells its replicas. A promoted replica whose
-- clock is behind may have only some of them: slots that would never be released. In that case all permits have
-- expired.
if not foreign and redis.call('exists', KEYS[1], KEYS[4], KEYS[5]) % 3 > 0 then
  redis.call('del', KEYS[1], KEYS[4], KEYS[5])
  first = {}
end
if not foreign and first[1] and tonumber(first[2]) <= now then
  repeat
    local batch = math.min(at_most, 1000)
    local expired = redis.call('zrangebyscore', KEYS[1], '-inf', now, 'limit', 0, batch)
    if #expired == batch and tonumber(redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]) <= now then
      freed = freed + redis.call('bitcount', KEYS[5])
      redis.call('del', KEYS[1], KEYS[4], KEYS[5])
    elseif #expired > 0 then
      local slots = redis.call('hmget', KEYS[4], unpack(expired))
      redis.call('zrem', KEYS[1], unpack(expired))
      redis.call('hdel', KEYS[4], unpack(expired))
      for i = 1, #expired do freed = freed + mark(slots[i] or '', 0) end
      tidy()
    end
    at_most = at_most - batch
  until #expired < batch or at_most == 0
  pass_on()
end
