-- Purpose: find the writer that has waited longest, and remove the expired places of writers. The arrivals of writers
-- are stored less 2^52, so writers stand before all readers in the queue. Uses KEYS[2] queue, KEYS[3] places, now. Sets
-- first, the first in the queue with its score; writer, writer_came and writer_until, nil if no writer waits.
local first, writer, writer_came, writer_until
while true do
  first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
  if not first[1] or tonumber(first[2]) >= 0 then break end
  local place = redis.call('hget', KEYS[3], first[1])
  local until_ms = place and string.match(place, '^(%d+) ')
  if until_ms and tonumber(until_ms) > now then
    writer, writer_came, writer_until = first[1], first[2] + 2^52, tonumber(until_ms)
    break
  end
  redis.call('zrem', KEYS[2], first[1])
  redis.call('hdel', KEYS[3], first[1])
end
