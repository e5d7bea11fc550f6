-- Purpose: claim a reentrant lock, or else take a place in its queue, in one atomic step: whoever is refused is already
-- queued, so no release can slip in between. Idempotent: the hold count is set, never added to.
-- KEYS[1] lock: hash owner -> hold count
-- KEYS[2], KEYS[3] only from who waits: queue: zset owner -> arrival ms; places: hash owner -> "expiry channel"
-- ARGV[1] owner   ARGV[2] hold count to set   ARGV[3] lease, ms
-- ARGV[4..6] only from who waits: for how long to keep its place, ms; waited so far, ms; wake channel
-- Reply: 1 granted, new | 2 granted, was ours already | {remaining ms or -1, owner} held by that owner
--        | 0 the key holds another type, nothing was changed
if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
  redis.call('pexpire', KEYS[1], ARGV[3])
  if KEYS[2] then
    redis.call('zrem', KEYS[2], ARGV[1])
    redis.call('hdel', KEYS[3], ARGV[1])
  end
  return 1
end

local count = redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' then return 0 end

if count then
  if count ~= ARGV[2] then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end
  -- A nested acquire may lengthen the lease, never shorten it.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
  if KEYS[2] then
    redis.call('zrem', KEYS[2], ARGV[1])
    redis.call('hdel', KEYS[3], ARGV[1])
  end
  return 2
end

if KEYS[2] then
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
return {redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1]}
