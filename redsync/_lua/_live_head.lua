-- Purpose: find the first waiter in the queue whose place has not expired, by this node's clock alone, and remove the
-- expired places before it. Uses KEYS[2] queue, KEYS[3] places. Sets now, ms; head, nil without a waiter; and the
-- fields of its place: until_ms, of (the number of its claim), ask_id, guard, channel.
local now_time = redis.call('time')
local now = now_time[1] * 1000 + math.floor(now_time[2] / 1000)
local head, until_ms, of, ask_id, guard, channel
while true do
  head = redis.call('zrange', KEYS[2], 0, 0)[1]
  if not head then break end
  local place = redis.call('hget', KEYS[3], head)
  if place then
    until_ms, of, ask_id, guard, channel = string.match(place, '^(%d+) (%d+) (%S+) (%S+) (.*)$')
    -- A value of another format is not one of our places.
    if until_ms and tonumber(until_ms) > now then break end
  end
  redis.call('zrem', KEYS[2], head)
  redis.call('hdel', KEYS[3], head)
end
