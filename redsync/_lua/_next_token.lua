-- Purpose: give the next fencing token: more than this node's latest, more than the highest that the asker knows of, and
-- more than anything that this node may have forgotten: that was given before it was born, and no token is ahead of the
-- clock, microseconds since 1970. A node whose birth record says nothing counts as born now, and so does one without a
-- token: it is kept for a day, and then the clock has gone on by more than any number of grants. The guard is added to
-- the birth, as this node grants only when that is over: by so much the clocks of nodes may differ. What is there but no
-- number is an error, and nothing is changed. Uses KEYS[last] token, ARGV[last] known, guard, and what _memory.lua sets.
-- Sets token.
token = redis.call('incr', KEYS[#KEYS])
redis.call('pexpire', KEYS[#KEYS], 86400000)
local stands, told = token, tonumber(ARGV[#ARGV])
-- include: absurd
if absurd then
  -- A token that is there, however low, would count as the latest that this node gave.
  if token == 1 then redis.call('del', KEYS[#KEYS]) end
  return absurd
end
local least = told + 1
if since and token > 1 then
  if kind ~= 'original' then least = math.max(least, (since + string.match(guard, '^%d+')) * 1000) end
else
  local time = redis.call('time')
  least = math.max(least, time[1] * 1000000 + time[2])
end
if token < least then
  token = least
  redis.call('set', KEYS[#KEYS], string.format('%.0f', token), 'px', 86400000)
end
