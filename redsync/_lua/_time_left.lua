-- Purpose: tell how long it takes, if nobody gives anything back, until enough slots have expired for the asker and for all who
-- wait before it: so of those who wait each looks when its own turn may have come. Who comes after so many that all slots
-- must expire more than once counts the lease for each time. If permits have several slots it goes by their average.
-- Uses KEYS[1] claim, KEYS[2] queue, KEYS[5] taken, ARGV[3] lease, ms, now, permits, wants, before. Sets left, ms; -1 if nothing is taken.
local left = -1
local out = redis.call('zcard', KEYS[1])
if out > 0 then
  local taken = redis.call('bitcount', KEYS[5])
  local missing = math.max((before or redis.call('zcard', KEYS[2])) + wants + taken - permits, 1)
  local last = math.ceil(missing * out / math.max(taken, 1)) - 1
  left = redis.call('zrange', KEYS[1], last % out, last % out, 'withscores')[2] - now + math.floor(last / out) * ARGV[3]
end
