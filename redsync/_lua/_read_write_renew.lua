-- Purpose: renew many claims, in either mode of the read-write lock, and reply. Uses mode, "r:" or "w:", read_write and
-- read_write_claims.
local guarded = ARGV[3 * #KEYS + 1]
-- include: note_birth
local reply = {}
for i, key in ipairs(KEYS) do
  local claim, count, until_ms = mode .. ARGV[3 * i - 2], ARGV[3 * i - 1], now + ARGV[3 * i]
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
  elseif not find_blocker(key, owner_of(claim), mode) and type(put(key, claim, until_ms, count)) == 'number' then
    reply[i] = 1
  else
    reply[i] = 0
  end
end
return reply
