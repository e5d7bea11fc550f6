-- Purpose: give the next fencing token: higher than this node's latest, higher than the highest that the asker knows,
-- and higher than any that this node may have forgotten. It gave those before its birth, and no token is ahead of the
-- clock, in microseconds since 1970. A node whose birth record does not count is treated as born now. So is a node
-- without a token: tokens are kept for a day, in which the clock advances by more than any number of grants. The script
-- adds the guard to the birth: this node grants only after the guard, and the clocks of nodes may differ by that much.
-- A token below 3 counts as none, because a reply of 1 or 2 means a grant without one. A value that is not a number is
-- an error, and does not change. Uses KEYS[last] token, ARGV[last] known, guard, and the results of _memory.lua. Sets
-- token.
token = redis.call('incr', KEYS[#KEYS])
redis.call('pexpire', KEYS[#KEYS], 86400000)
local stands, told = token, tonumber(ARGV[#ARGV])
-- include: absurd
if absurd then
  -- This INCR created the key. If the 1 stayed, it would count as the latest token that this node gave.
  if token == 1 then redis.call('del', KEYS[#KEYS]) end
  return absurd
end
local least = told + 1
if since and token > 2 then
  if kind ~= 'original' then least = math.max(least, (since + string.match(guard, '^%d+')) * 1000) end
else
  local time = redis.call('time')
  least = math.max(least, time[1] * 1000000 + time[2])
end
if token < least then
  token = least
  redis.call('set', KEYS[#KEYS], string.format('%.0f', token), 'px', 86400000)
end
