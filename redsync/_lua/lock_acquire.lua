-- Purpose: claim a reentrant lock, or else take a place in its queue, in one atomic step: whoever is refused is already
-- queued, so no release can slip in between. Idempotent: the hold count is set, never added to.
-- KEYS[1] lock: hash owner -> hold count    KEYS[2] queue: zset owner -> arrival ms    KEYS[3] places: hash owner -> "expiry channel"
-- ARGV[1] owner   ARGV[2] hold count to set   ARGV[3] lease, ms
-- ARGV[4] for how long to keep a place in the queue, ms; 0: do not queue   ARGV[5] waited so far, ms   ARGV[6] wake channel
-- Reply: {1} granted, new | {2} granted, was ours already | {0, remaining ms or -1, owner} held by that owner
--        | {-1, -1, ''} the key holds another type, nothing was changed
local waits = ARGV[4] ~= '0'

local function leave_queue()
  if waits then
    redis.call('zrem', KEYS[2], ARGV[1])
    redis.call('hdel', KEYS[3], ARGV[1])
  end
end

if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
  redis.call('pexpire', KEYS[1], ARGV[3])
  leave_queue()
  return {1}
end

local count = redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' then return {-1, -1, ''} end

if count then
  if count ~= ARGV[2] then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end
  -- A nested acquire may lengthen the lease, never shorten it.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
  leave_queue()
  return {2}
end

if waits then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- The arrival is this node's now less the time already waited: a duration needs no common clock.
  redis.call('zadd', KEYS[2], string.format('%.0f', now - ARGV[5]), ARGV[1])
  redis.call('hset', KEYS[3], ARGV[1], string.format('%.0f ', now + ARGV[4]) .. ARGV[6])
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[4]) then
    redis.call('pexpire', KEYS[2], ARGV[4])
    redis.call('pexpire', KEYS[3], ARGV[4])
  end
end
return {0, redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1]}
