-- Purpose: lengthen many permits at once, of several semaphores. A permit that this node forgot gets its slots again, if they
-- are free ("healed"), so that it counts from the next renewal on; it never counts in this one, or what had expired could be
-- won back. Slots that the node gave besides are taken back, and a place in line that is left there is given up.
-- KEYS[5j-4..5j] semaphore j: claim: zset permit -> expiry, ms; slots: hash permit -> "slot,slot"; taken: bit map;
--        queue: zset permit -> ticket; places: hash permit -> "expiry wants channel"
-- ARGV[4i-3] the semaphore's number   ARGV[4i-2] permit   ARGV[4i-1] its slots: "slot,slot"   ARGV[4i] its lease, ms
-- ARGV[4n+1] only if memory is guarded: 1
-- Reply: one integer per permit: 2 it had these slots, lengthened | 1 it lacked some, healed | 0 others have some
--        | -1 the key holds another type
local guarded = ARGV[#ARGV - #ARGV % 4 + 1]
-- include: note_birth
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function set(text)
  local members = {}
  for slot in string.gmatch(text or '', '%d+') do members[slot] = true end
  return members
end

-- Makes the slots of a permit exactly the wanted ones, or none if others have some of them; returns whether it has them.
local function rearrange(taken, has, wanted)
  local free = true
  for slot in pairs(wanted) do free = free and (has[slot] or redis.call('getbit', taken, slot) == 0) end
  for slot in pairs(has) do
    if not (free and wanted[slot]) then redis.call('setbit', taken, slot, 0) end
  end
  for slot in pairs(free and wanted or {}) do
    if not has[slot] then redis.call('setbit', taken, slot, 1) end
  end
  return free
end

local reply, longest = {}, {}
for i = 1, math.floor(#ARGV / 4) do
  local j, permit, wanted, lease = 5 * ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  local claim, slots, taken = KEYS[j - 4], KEYS[j - 3], KEYS[j - 2]
  local expiry = redis.pcall('zscore', claim, permit)
  if type(expiry) == 'table' then
    reply[i] = -1
  else
    local text = expiry and redis.call('hget', slots, permit)
    reply[i] = text and tonumber(expiry) > now and 2 or 1
    -- Changes nothing, but needs no memory: a node that is out of memory lets the script go on after it.
    if not longest[j] then redis.call('zrem', claim, '') end
    longest[j] = math.max(longest[j] or 0, lease)
    if text ~= wanted then
      local has = set(text)
      wanted = set(wanted)
      for slot in pairs(wanted) do
        if not has[slot] then reply[i] = 1 end
      end
      if rearrange(taken, has, wanted) then
        redis.call('hset', slots, permit, ARGV[4 * i - 1])
      else
        reply[i] = 0
        redis.call('zrem', claim, permit)
        redis.call('hdel', slots, permit)
      end
    end
    if reply[i] < 2 then
      redis.call('zrem', KEYS[j - 1], permit)
      redis.call('hdel', KEYS[j], permit)
    end
    if reply[i] > 0 and (reply[i] == 1 or tonumber(expiry) < now + lease) then
      redis.call('zadd', claim, now + lease, permit)
    end
  end
end

-- The keys outlast the permits, and end at one instant: a bit map must not outlive the permits that its bits stand for.
for j, lease in pairs(longest) do
  if redis.call('exists', KEYS[j - 4]) == 0 then
    redis.call('del', KEYS[j - 3], KEYS[j - 2])
  elseif redis.call('pttl', KEYS[j - 4]) < lease then
    for i = j - 4, j - 2 do redis.call('pexpireat', KEYS[i], now + 2 * lease) end
  end
end
return reply
