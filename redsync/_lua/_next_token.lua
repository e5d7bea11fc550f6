-- Purpose: give the next fencing token: higher than this node's latest, higher than the highest that the asker knows
-- of, and higher than any that this node may have forgotten. It gave those before its birth, and no token is ahead of
-- the clock, in microseconds since 1970. A node whose birth record says nothing counts as born now. So does a node
-- without a token: tokens are kept for a day, in which the clock goes on by more than any number of grants. The guard
-- is added to the birth, because this node grants only after the guard; the clocks of nodes may differ by that much. A
-- value that is no number is an error, and nothing is changed. Uses KEYS[last] token, ARGV[last] known, guard, and what
-- _memory.lua sets. Sets token.
token = redis.call('incr', KEYS[#KEYS])
redis.call('pexpire', KEYS[#KEYS], 86400000)
local stands, told = token, tonumber(ARGV[#ARGV])
-- include: absurd
if absurd then
  -- This INCR created the key: left there, the 1 would count as the latest token that this node gave.
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
