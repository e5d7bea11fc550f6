-- Purpose: what both modes of the read-write lock do when an attempt is undone. Uses mode, "r:" or "w:", and what read_write
-- has; replies.
-- A node that refuses to write answers by an error, or this would never be sent again.
local had = type(redis.pcall('zscore', KEYS[1], mode .. ARGV[1])) == 'string'
if had then redis.call('zrem', KEYS[1], mode .. ARGV[1]) end
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
