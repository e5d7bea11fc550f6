-- Purpose: grant or refuse a claim, in either mode of the read-write lock, and reply. Uses mode, "r:" or "w:",
-- read_write and read_write_claims.
local ours, guard = mode .. ARGV[1], ARGV[4]
-- include: waiter
if redis.call('exists', KEYS[1], KEYS[2] or KEYS[1]) == 0 then
-- include: remembers
  local refusal = put(KEYS[1], ours, now + ARGV[3], ARGV[2], true)
  return type(refusal) == 'table' and refusal or 1
end

local had = redis.pcall('zscore', KEYS[1], ours)
if type(had) == 'table' then return 0 end
if had and is_live(had) then
  -- A re-entry may lengthen the lease, never shorten it.
  local refusal = put(KEYS[1], ours, math.max(now + ARGV[3], math.floor(math.abs(had))), ARGV[2])
  if type(refusal) == 'table' then return refusal end
  if ARGV[5] then
-- include: leave_queue
  end
  return 2
end

local blocker, until_ms, writes = find_blocker(KEYS[1], waiter, mode)
if blocker == '' then return 0 end
local queued = false
if mode == 'r:' and KEYS[2] and not blocker and not writes then
-- include: read_write_next
  queued = first[1]
  -- A new reader comes after a waiting writer; a waiting reader comes in its turn.
  if writer and writer ~= waiter and not (ARGV[5] and now - ARGV[6] < writer_came) then
    blocker, until_ms = 'writers', writer_until
  end
end
if blocker then
  if not ARGV[5] then return {until_ms - now, blocker} end
-- include: read_write_place
  return {until_ms - now, blocker, rank}
end

-- include: remembers
local refusal = put(KEYS[1], ours, now + ARGV[3], ARGV[2])
if type(refusal) == 'table' then return refusal end
if ARGV[5] then
-- include: leave_queue
end
if queued then
  -- Waiting readers that this node has not woken yet get the lock along with this one.
-- include: read_write_hand_over
end
return 1
