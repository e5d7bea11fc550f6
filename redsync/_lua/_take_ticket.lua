-- Purpose: take the place of a ticket, or keep it for longer. The ticket "+" stands for the one that the place already
-- has, or else for the next one of this node's queue. A late ask changes nothing if the owner has since taken a place
-- for a later claim.
-- Uses highest: the highest ticket in the queue, which it sets to ours; KEYS[2] queue, KEYS[3] places, waiter, number,
-- ARGV[4] guard, ms, ARGV[5] how long to keep the place, ms, ARGV[6] ticket, ARGV[7] wake channel, ARGV[8] mark.
local place = redis.call('hget', KEYS[3], waiter)
if not place or tonumber(string.match(place, '^%d+ (%d+) ') or 0) <= number then
  local time = redis.call('time')
  local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[5]
  local ticket = ARGV[6]
  if ticket == '+' then ticket = tonumber(redis.call('zscore', KEYS[2], waiter) or highest + 1) end
  highest = tonumber(ticket)
  redis.call('zadd', KEYS[2], ticket, waiter)
  place = string.format('%.0f %.0f ', until_ms, number) .. ARGV[8] .. ' ' .. ARGV[4] .. ' ' .. ARGV[7]
  redis.call('hset', KEYS[3], waiter, place)
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
    redis.call('pexpire', KEYS[2], ARGV[5])
    redis.call('pexpire', KEYS[3], ARGV[5])
  end
end
