-- Purpose: claim a reentrant lock with a fencing token, or else take a place in its queue, in one atomic step, as
-- lock_acquire. Each grant of a new claim gives a higher token, also where the claim is ours already: it may be of an
-- earlier hold. Idempotent but for that: who asks twice gets a token that is higher than needed.
-- KEYS[1] lock: hash owner -> hold count
-- KEYS[2], KEYS[3] only from who waits: queue: zset owner -> arrival ms; places: hash owner -> "expiry mark guard channel"
-- KEYS[last] not for a re-entry: latest token of this node
-- ARGV[1] owner   ARGV[2] hold count to set   ARGV[3] lease, ms
-- ARGV[4] for how long this node must have remembered everything to grant a new claim, ms; 0: does not matter
-- ARGV[5..8] only from who waits: for how long to keep its place, ms; waited so far, ms; wake channel; mark of this ask,
--        0: it must not be handed over to it
-- ARGV[last] not for a re-entry: the highest token that the asker knows of, or 0
-- Reply: {1, token} granted, new | {2, token} granted, was ours already; a re-entry gets just the 1 or 2
--        | {remaining ms or -1, owner} held by that owner; to who waits also how many wait before it
--        | 0 the key holds another type, nothing was changed | error FORGETFUL <ms for which this node remembers, or -1>
local free = redis.call('exists', KEYS[1]) == 0
local count = not free and redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' then return 0 end

if not free and not count then
  local rank
  if KEYS[3] then
-- include: take_place
    rank = redis.call('zrank', KEYS[2], ARGV[1])
  end
  return {redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1], rank}
end

if free then
  local guard = ARGV[4]
-- include: remembers
end
local token
if KEYS[2] then
-- include: next_token
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
-- A nested acquire may lengthen the lease, never shorten it.
if free or redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
if KEYS[3] then
-- include: leave_queue
end
local code = free and 1 or 2
return token and {code, token} or code
