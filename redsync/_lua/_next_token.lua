-- Purpose: give the next fencing token: more than this node's latest and more than the highest that the asker knows of. A
-- node without one begins with its clock, microseconds since 1970, so that what was forgotten is exceeded. It is
-- kept for a day: then the clock has gone on by more than any number of grants. Uses KEYS[last] token, ARGV[last] known.
-- Sets token; nothing is written before all of it is known to be right.
local latest = redis.call('get', KEYS[#KEYS])
if latest and not tonumber(latest) then return redis.error_reply('NOTOKEN the key ' .. KEYS[#KEYS] .. ' holds no fencing token') end
local token_time = redis.call('time')
token = latest and latest + 1 or token_time[1] * 1000000 + token_time[2]
token = math.max(token, ARGV[#ARGV] + 1)
redis.call('set', KEYS[#KEYS], string.format('%.0f', token), 'px', 86400000)
