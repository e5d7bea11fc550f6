-- Purpose: release a hold, in either mode of the read-write lock, and reply. Uses mode, "r:" or "w:", and read_write.
local ours = mode .. ARGV[1]
local had = redis.pcall('zscore', KEYS[1], ours)
if type(had) == 'table' or not had or not is_live(had) then
  if ARGV[2] == '0' then
    -- The owner may still have a place here, if the client did not ask this node when the others granted.
-- include: leave_queue
  end
  return 0
end

if ARGV[2] ~= '0' then
  -- A node out of memory may refuse the new count. That is harmless: each later count is set as a whole, 0 is a ZREM.
-- include: read_write_claims
  put(KEYS[1], ours, math.floor(math.abs(had)), ARGV[2])
  return 1
end
redis.call('zrem', KEYS[1], ours)
if redis.call('exists', KEYS[2]) == 1 then
  -- A renewal may have made the claim here while our place was still queued. Without this we would wake ourselves.
-- include: leave_queue
-- include: read_write_hand_over
end
return 1
