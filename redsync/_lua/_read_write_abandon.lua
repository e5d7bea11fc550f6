-- Purpose: roll back an attempt, in either mode of the read-write lock. Uses mode, "r:" or "w:", and what read_write
-- defines; replies. A node that refuses to write must answer with an error: else the client would not send the rollback
-- again.
local had = type(redis.pcall('zscore', KEYS[1], mode .. ARGV[1])) == 'string'
if had then redis.call('zrem', KEYS[1], mode .. ARGV[1]) end
if ARGV[2] == '1' then
-- include: leave_queue
  -- The waiter that leaves may have kept others waiting, or may have been woken a moment ago.
  if type(redis.pcall('zcard', KEYS[1])) == 'number' then
-- include: read_write_hand_over
  end
else
-- include: keep_place
end
return had and 1 or 0
