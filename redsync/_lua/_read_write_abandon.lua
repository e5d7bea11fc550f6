-- Purpose: what both modes of the read-write lock do when an attempt is undone. Uses mode, "r:" or "w:", and what read_write
-- has; replies.
local had = redis.pcall('zrem', KEYS[1], mode .. ARGV[1]) == 1
if ARGV[2] == '1' then
-- include: leave_queue
  -- Who leaves may have kept others waiting, or have been woken a moment ago.
  if type(redis.pcall('zcard', KEYS[1])) == 'number' then
-- include: read_write_hand_over
  end
else
-- include: keep_place
end
return had and 1 or 0
