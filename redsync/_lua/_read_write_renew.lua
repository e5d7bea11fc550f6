-- Purpose: what both modes of the read-write lock do to renew many claims. Uses mode, "r:" or "w:", and what read_write has;
-- replies.
local guarded = ARGV[3 * #KEYS + 1]
-- include: note_birth
local reply = {}
for i, key in ipairs(KEYS) do
  local claim, count, until_ms = mode .. ARGV[3 * i - 2], ARGV[3 * i - 1], now + ARGV[3 * i]
  local had = redis.pcall('zscore', key, claim)
  if type(had) == 'table' then
    reply[i] = -1
  elseif had and is_live(had) then
    -- Changes nothing, but needs no memory: a node that is out of memory lets the script go on after it. What a node
    -- refuses to lengthen, as it can't save its data, must not count as lengthened.
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
