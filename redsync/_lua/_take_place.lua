-- Purpose: take a place in the queue of a lock with one owner at a time, or keep it.
-- Uses ARGV[1] claim, and what put_place uses. Sets rank: the number of waiters before it.
-- include: waiter
local time = redis.call('time')
local now, ahead = time[1] * 1000 + math.floor(time[2] / 1000), 0
-- include: put_place
