-- Purpose: give back a hold, in either mode of the read-write lock. Uses mode, "r:" or "w:", and what read_write
-- defines; replies.
local ours = mode .. ARGV[1]
local had = redis.pcall('zscore', KEYS[1], ours)
if type(had) == 'table' or not had or not is_live(had) then
  if ARGV[2] == '0' then
    -- The owner may still have a place here, if this node was not asked when the others granted.
-- include: leave_queue
  end
  return 0
end

if ARGV[2] ~= '0' then
  -- Out of memory, a node may refuse the new count. That does no harm: each later count is set as a whole, 0 is a ZREM.
-- include: read_write_claims
  put(KEYS[1], ours, math.floor(math.abs(had)), ARGV[2])
  return 1
end
redis.call('zrem', KEYS[1], ours)
if redis.call('exists', KEYS[2]) == 1 then
  -- A renewal may have made the claim here while our place was still queued: without this we would wake ourselves.
-- include: leave_queue
-- include: read_write_hand_over
end
return 1
