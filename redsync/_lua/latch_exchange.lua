-- Purpose: tell a node what a client knows of a count-down latch, and the client what the node knows then. Both only grow:
-- a higher generation replaces a lower one, within one the totals of the clients are set to the higher. So it sets, counts
-- down, repairs, deletes (a generation of size 0) and looks. Who waits gets a place in the same step; all who wait are
-- woken when this node sees the latch open. Idempotent.
-- KEYS[1] latch: hash generation, size, client -> total   KEYS[2] waiters: zset "channel owner" -> until when, ms
-- ARGV[1] for how long to keep the latch from now on, ms
-- ARGV[2] who waits, "channel owner", or empty   ARGV[3] for how long to keep its place, ms
-- ARGV[4] for how long this node must have remembered everything to say that it was never set, ms; 0: does not matter
-- ARGV[5] generation, 0: nothing is known   ARGV[6] size   ARGV[7..] client, total, client, total ...
-- Reply: {generation, size, client, total, client, total ...}, {0, 0} never set
--        | 0 the key holds another type, nothing was changed | error FORGETFUL <ms for which this node remembers, or -1>
local known = redis.pcall('hget', KEYS[1], 'generation')
if type(known) == 'table' or not known and redis.call('exists', KEYS[1]) == 1 then return 0 end
local generation, told = tonumber(known or 0), tonumber(ARGV[5])

local replaced = told > generation
if replaced then
  redis.call('del', KEYS[1])
  redis.call('hset', KEYS[1], 'generation', ARGV[5], 'size', ARGV[6])
  generation = told
end
if generation == 0 then
  local guard = ARGV[4]
-- include: remembers
  return {0, 0}
end
if told == generation then
  for i = 7, #ARGV, 2 do
    if tonumber(redis.call('hget', KEYS[1], ARGV[i]) or 0) < tonumber(ARGV[i + 1]) then
      redis.call('hset', KEYS[1], ARGV[i], ARGV[i + 1])
    end
  end
end
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[1]) then redis.call('pexpire', KEYS[1], ARGV[1]) end

local size = tonumber(redis.call('hget', KEYS[1], 'size'))
local reply, left = {generation, size}, size
local fields = redis.call('hgetall', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] ~= 'generation' and fields[i] ~= 'size' then
    reply[#reply + 1] = fields[i]
    reply[#reply + 1] = tonumber(fields[i + 1])
    left = left - fields[i + 1]
  end
end

if replaced or left <= 0 then
  -- Who waits for an earlier generation has waited for long enough: a later one is only set when that was open.
  for _, waiter in ipairs(redis.call('zrange', KEYS[2], 0, -1)) do
    local channel, owner = string.match(waiter, '^(%S+) (%S+)$')
    redis.call('publish', channel, '0 ' .. owner .. ' ' .. KEYS[1])
  end
  redis.call('del', KEYS[2])
end
if left > 0 and ARGV[2] ~= '' then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('zremrangebyscore', KEYS[2], '-inf', string.format('%.0f', now))
  redis.call('zadd', KEYS[2], string.format('%.0f', now + ARGV[3]), ARGV[2])
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[2], ARGV[3]) end
end
return reply
