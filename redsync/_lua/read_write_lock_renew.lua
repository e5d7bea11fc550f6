-- Purpose: lengthen the claims of many readers and writers at once, and create again ("repair") claims that this node
-- forgot, if no other owner writes, or for a writer also reads. A repaired claim counts from the next renewal on, never
-- in this one: else an expired lock could be won back.
-- KEYS[i] holders of lock i: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- ARGV[3i-2] our claim on it and its mode: "r:<owner>:<number>" or "w:<owner>:<number>"
-- ARGV[3i-1] its hold count   ARGV[3i] its lease, ms
-- ARGV[3n+1] only if memory is guarded: 1
-- Reply: one integer per lock: 2 ours, lengthened | 1 was missing, repaired | 0 others hold it, or no memory left to
--        repair it | -1 the key holds another type
-- include: read_write_claims
local guarded = ARGV[3 * #KEYS + 1]
-- include: note_birth
local reply = {}
for i, key in ipairs(KEYS) do
  local claim, count, until_ms = ARGV[3 * i - 2], ARGV[3 * i - 1], now + ARGV[3 * i]
  local had = redis.pcall('zscore', key, claim)
  if type(had) == 'table' then
    reply[i] = -1
  elseif had and is_live(had) then
    -- This ZREM changes nothing, but it is a write that needs no memory: after it, a node out of memory lets the script
    -- continue. A node that can't save its data refuses to lengthen the claim, which must then not count as lengthened.
    redis.call('zrem', key, '')
    local refusal = put(key, claim, math.max(until_ms, math.floor(math.abs(had))), count)
    if type(refusal) == 'table' then return refusal end
    reply[i] = 2
  elseif not find_blocker(key, owner_of(claim), string.sub(claim, 1, 2))
      and type(put(key, claim, until_ms, count)) == 'number' then
    reply[i] = 1
  else
    reply[i] = 0
  end
end
return reply
