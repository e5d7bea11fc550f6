-- Purpose: lengthen many permits of a semaphore at once. A permit that this node forgot gets its slots again if they are
-- free ("repaired"). It counts from the next renewal on, never in this one: else an expired permit could be won back.
-- The node frees other slots that it gave the permit. A permit that it repairs, or finds lost, also loses its place in
-- the queue here. The node learns the limit, unless it knows a newer one, which it then reports. So a limit lasts as
-- long as any permit that is renewed.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits"
-- ARGV[3i-2] permit   ARGV[3i-1] its slots: "slot,slot"   ARGV[3i] its lease, ms
-- ARGV[3n+1] the limit as their holder knows it: "version permits"   ARGV[3n+2] only if memory is guarded: 1
-- Reply: one integer per permit: 2 it had these slots, or those that a release of the others left; lengthened | 1 it
--        lacked some, repaired | 0 others have some | -1 the key holds another type. After these, if this node knows a
--        newer limit: that limit
local permits = math.floor((#ARGV - 1) / 3)
local guarded = ARGV[3 * permits + 2]
-- include: note_birth
-- include: slots

local function set(text)
  local members = {}
  for slot in string.gmatch(text, '%d+') do members[slot] = true end
  return members
end

local reply, longest, foreign = {}, 0, not purge(4)
-- This ZREM changes nothing, but it is a write that needs no memory: after it, a node out of memory lets the script
-- continue.
if not foreign then redis.call('zrem', KEYS[1], '') end
for i = 1, permits do
  local permit, wanted, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  if foreign then
    reply[i] = -1
  else
    local mine = redis.call('hget', KEYS[4], permit)
    local expiry = mine and tonumber(redis.call('zscore', KEYS[1], permit)) or 0
    reply[i] = expiry > now and 2 or 1
    longest = math.max(longest, lease)
    if mine ~= wanted then
      local has, wants, lacks, late, free = set(mine or ''), set(wanted), not mine, mine, true
      for slot in pairs(wants) do
        lacks = lacks or not has[slot]
        free = free and (has[slot] or redis.call('getbit', KEYS[5], slot) == 0)
      end
      for slot in pairs(has) do late = late and wants[slot] end
      -- A permit that has only wanted slots here, but not all: a release of the others has overtaken this renewal.
      if not (lacks and late) then
        if lacks then reply[i] = 1 end
        freed = freed + mark(mine or '', 0)
        if free then
          freed = freed - mark(wanted, 1)
          redis.call('hset', KEYS[4], permit, wanted)
        else
          reply[i] = 0
          drop(permit)
        end
      end
    end
    if reply[i] < 2 then
      local owner = string.match(permit, '^(.*):%d+$') or permit
      redis.call('zrem', KEYS[2], owner)
      redis.call('hdel', KEYS[3], owner)
    end
    if reply[i] > 0 and expiry < now + lease then redis.call('zadd', KEYS[1], now + lease, permit) end
  end
end

local lengthened = longest > 0 and keep_slots(longest)
local limit = ARGV[3 * permits + 1]
local version = tonumber(string.match(limit, '^%d+'))
local its_limit, its_version, _, its_window = read_limit(KEYS[6])
if its_version and its_version > version and its_window == '' then
  reply[permits + 1] = its_limit
elseif longest > 0 and ((its_version or -1) < version or version == 0 and lengthened) then
  write_limit(KEYS[6], limit, version, longest)
end
wake_next()
return reply
