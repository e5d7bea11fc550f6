-- Purpose: wake the waiter that has waited longest, and only that one. Its place is taken away: a waiter that fails
-- after its wake-up queues again with its first arrival. Waiters whose place has expired, or whose client no longer
-- listens on this node (PUBLISH reached nobody), are passed over at once, so dead ones never hold anybody up.
-- Expiry is judged by this node's clock alone. Uses KEYS[1] lock, KEYS[2] queue, KEYS[3] places.
while true do
  local head = redis.call('zrange', KEYS[2], 0, 0)[1]
  if not head then break end
  local place = redis.call('hget', KEYS[3], head)
  redis.call('zrem', KEYS[2], head)
  redis.call('hdel', KEYS[3], head)
  if place then
    local expiry, channel = string.match(place, '^(%d+) (.*)$')
    local time = redis.call('time')
    if tonumber(expiry) > time[1] * 1000 + math.floor(time[2] / 1000)
        and redis.call('publish', channel, head .. ' ' .. KEYS[1]) > 0 then
      break
    end
  end
end
