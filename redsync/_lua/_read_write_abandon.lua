-- Purpose: roll back an attempt, in either mode of the read-write lock, and reply. A node that refuses to write must
-- reply with an error: else the client would not send the rollback again. Uses mode, "r:" or "w:", and read_write.
local had = type(redis.pcall('zscore', KEYS[1], mode .. ARGV[1])) == 'string'
if had then redis.call('zrem', KEYS[1], mode .. ARGV[1]) end
if ARGV[2] == '1' then
-- include: leave_queue
  -- The waiter that leaves may have kept others waiting, or this node may have just woken it.
  if type(redis.pcall('zcard', KEYS[1])) == 'number' then
-- include: read_write_hand_over
  end
else
-- include: keep_place
end
return had and 1 or 0
