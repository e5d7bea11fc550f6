-- Purpose: give up the place in line without having got anything there: who stood behind it has come nearer.
-- Uses KEYS[2] queue, KEYS[3] places, ARGV[1] permit. Adds to freed.
local place = redis.call('hget', KEYS[3], ARGV[1])
if place then
  freed = freed + (string.match(place, '^%d+ (%d+) ') or 0)
-- include: leave_queue
end
