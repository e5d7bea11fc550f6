-- Purpose: exchange knowledge of a count-down latch between a client and this node. Knowledge only grows: a higher
-- generation replaces a lower one, and within a generation each client's total is set to the higher value. So one
-- script sets, counts down, repairs, deletes (a generation of size 0) and looks. A waiter gets a place in the same
-- step; the script wakes all waiters when this node sees the latch open. Idempotent. A node that lost its memory less
-- than a latch's keeping time ago may have known more: its reply says so, and has no vote. But it vouches for a latch
-- that was set later: a generation is a fencing token, and all that it forgot are below the clock at its birth.
-- KEYS[1] latch: hash generation, size, client -> total
-- KEYS[2] waiters: zset "channel owner:number" -> expiry, ms
-- KEYS[3] where Redisson would keep a latch of that name: a string that never expires
-- ARGV[1] how long to keep the latch from now on, ms
-- ARGV[2] the waiter, "channel owner:number", or empty   ARGV[3] how long to keep its place, ms
-- ARGV[4] guard: how long this node must have remembered everything to say that the latch was never set, ms, and under
--        which processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5] how much the clocks of nodes may differ, ms
-- ARGV[6] generation, 0: nothing is known   ARGV[7] size   ARGV[8..] client, total, client, total ...
-- Reply: {generation, size, client, total, client, total ...}, {0, 0} never set; a node that does not vouch for it adds
--        since when it remembers, ms, or -1
--        | 0 the key holds another type, or Redisson has a latch of that name, no change | error FORGETFUL <ms that this node remembers, or -1>
local known = redis.pcall('hget', KEYS[1], 'generation')
if type(known) == 'table' or not known and redis.call('exists', KEYS[1]) == 1 then return 0 end
if redis.call('pttl', KEYS[3]) == -1 and redis.call('type', KEYS[3]).ok == 'string' then return 0 end
local generation, told = tonumber(known or 0), tonumber(ARGV[6])

-- Since when this node remembers, if that is not long enough.
local born
local guard = ARGV[4]
if guard ~= '0' then
  local guarded = told > 0
-- include: note_birth
-- include: memory
  if generation == 0 and told == 0 then
-- include: refuse_forgetful
  end
  if remembered < tonumber(ARGV[1]) then born = tonumber(since or -1) end
end
if generation == 0 and told == 0 then return {0, 0, born} end

local replaced = told > generation
if replaced then
  redis.call('del', KEYS[1])
  redis.call('hset', KEYS[1], 'generation', ARGV[6], 'size', ARGV[7])
  generation = told
end
if told == generation then
  for i = 8, #ARGV, 2 do
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
if born and (born < 0 or generation < (born + ARGV[5]) * 1000) then reply[#reply + 1] = born end

if replaced or left <= 0 then
-- include: wake
  -- Waiters for an earlier generation may continue: a later one is set only if the earlier one was open.
  for _, waiter in ipairs(redis.call('zrange', KEYS[2], 0, -1)) do
    local channel, owner = string.match(waiter, '^(%S+) (%S+)$')
    wake(channel, '0', owner)
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
