-- Purpose: what both modes of the read-write lock do when they are given back. Uses mode, "r:" or "w:", and what read_write
-- has; replies.
local ours = mode .. ARGV[1]
local had = redis.pcall('zscore', KEYS[1], ours)
if type(had) == 'table' or not had or not is_live(had) then
  if ARGV[2] == '0' then
    -- A place may be left if this node was not asked when the others granted.
-- include: leave_queue
  end
  return 0
end

if ARGV[2] ~= '0' then
  -- Under OOM a node may refuse the new count. It does no harm: each later count is set as a whole, and 0 is a ZREM.
-- include: read_write_claims
  put(KEYS[1], ours, math.floor(math.abs(had)), ARGV[2])
  return 1
end
redis.call('zrem', KEYS[1], ours)
if redis.call('exists', KEYS[2]) == 1 then
  -- A renewal may have made the claim here, where we were still queueing: without this we would wake ourselves.
-- include: leave_queue
-- include: read_write_hand_over
end
return 1
