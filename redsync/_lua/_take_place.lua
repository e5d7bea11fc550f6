-- Purpose: take a place in a queue by arrival, or keep it. The arrival is this node's time less the time already waited:
-- a duration needs no common clock. Uses what write_place uses, but for now and score; ahead: ms by which it goes before
-- others; ARGV[6] waited so far, ms. Sets rank: the number of waiters before it, including expired places, because
-- filtering these out would take long.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local score = string.format('%.0f', now - ARGV[6] - ahead)
-- include: write_place
rank = redis.call('zrank', KEYS[2], waiter)
