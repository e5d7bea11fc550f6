-- Purpose: compute how long it takes, if nothing is released, until enough slots have expired for the asker and
-- for all waiters before it: so each waiter looks when its own turn may have come. Free slots go to the first waiters,
-- and expire after all that are taken now. Far back in the line slots must expire more than once: each time counts as
-- one lease. If permits have several slots, their average counts. Uses KEYS[1] claim, KEYS[2] queue, KEYS[5] taken,
-- ARGV[3] lease, ms, now, permits, wants, before. Sets left, ms; -1 if there is room.
local taken = redis.call('bitcount', KEYS[5])
local cycle = math.max(permits, taken)
local last = (before or redis.call('zcard', KEYS[2])) + wants - 1 + cycle - permits
local left, index = math.floor(last / cycle) * ARGV[3], last % cycle - (cycle - taken)
if index >= 0 then
  local out = redis.call('zcard', KEYS[1])
  local rank = math.ceil((index + 1) * out / taken) - 1
  left = math.ceil(left + redis.call('zrange', KEYS[1], rank, rank, 'withscores')[2] - now)
elseif last < cycle then
  left = -1
end
