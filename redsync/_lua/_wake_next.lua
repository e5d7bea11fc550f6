-- Purpose: wake the waiter that has waited longest, and only that one. Its place is taken away: a waiter that fails
-- after its wake-up queues again with its first arrival. Waiters whose place has expired, or whose client no longer
-- listens on this node (PUBLISH reached nobody), are passed over at once, so dead ones never hold anybody up.
-- Expiry is judged by this node's clock alone.
local function wake_next(lock, queue, places)
  while true do
    local head = redis.call('zrange', queue, 0, 0)[1]
    if not head then return end
    local place = redis.call('hget', places, head)
    redis.call('zrem', queue, head)
    redis.call('hdel', places, head)
    if place then
      local expiry, channel = string.match(place, '^(%d+) (.*)$')
      local time = redis.call('time')
      if tonumber(expiry) > time[1] * 1000 + math.floor(time[2] / 1000)
          and redis.call('publish', channel, head .. ' ' .. lock) > 0 then
        return
      end
    end
  end
end
