-- Purpose: give the next fencing token: more than this node's latest and more than the highest that the asker knows of. A
-- node without one begins with its clock, microseconds since 1970, so that what was forgotten is exceeded. It is kept
-- for a day: then the clock has gone on by more than any number of grants. What is there but no number is an error, and
-- nothing is changed. Uses KEYS[last] token, ARGV[last] known. Sets token.
token = redis.call('incr', KEYS[#KEYS])
local least = ARGV[#ARGV] + 1
if token == 1 then
  local time = redis.call('time')
  least = math.max(least, time[1] * 1000000 + time[2])
end
if token < least then
  token = least
  redis.call('set', KEYS[#KEYS], string.format('%.0f', token))
end
redis.call('pexpire', KEYS[#KEYS], 86400000)
