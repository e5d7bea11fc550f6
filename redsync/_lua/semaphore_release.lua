-- Purpose: release a permit, or some of its slots, and wake the waiters that now fit in; or take a success from a rate
-- limiter, by force. The call names the slots that remain, not those to subtract. Idempotent: a permit that is not there
-- is not created.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits"
-- ARGV[1] permit   ARGV[2] how many slots remain   ARGV[3] which remain: "slot,slot"
-- Reply: 1 this node had the permit: even if its time was over, no other owner got its slots | 0 it did not have it
local expiry = redis.pcall('zscore', KEYS[1], ARGV[1])
if type(expiry) == 'table' then return 0 end
local mine = expiry and redis.call('hget', KEYS[4], ARGV[1])
-- include: slots
-- The permit's owner may still have a place here, if this node did not grant when the others did.
leave()
if ARGV[2] == '0' then
  -- Even without the permit: a node that refuses to write must reply with an error, and get this again.
  freed = freed + drop(ARGV[1], mine)
elseif mine then
  local remain = {}
  for slot in string.gmatch(ARGV[3], '%d+') do remain[slot] = true end
  local kept, given = {}, {}
  for slot in string.gmatch(mine, '%d+') do
    local part = remain[slot] and kept or given
    part[#part + 1] = slot
  end
  if #kept == 0 then
    freed = freed + drop(ARGV[1], mine)
  elseif #given > 0 then
    -- This ZREM changes nothing, but it is a write that needs no memory: after it, a node out of memory lets the script
    -- continue.
    redis.call('zrem', KEYS[2], ARGV[1])
    redis.call('hset', KEYS[4], ARGV[1], table.concat(kept, ','))
    freed = freed + mark(table.concat(given, ','), 0)
  end
end
tidy()
pass_on()
wake_next()
return mine and 1 or 0
