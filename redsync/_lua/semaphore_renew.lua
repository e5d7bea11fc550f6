-- Purpose: lengthen many permits at once, of several semaphores. A permit that this node forgot gets its slots again if
-- they are free ("repaired"). It counts from the next renewal on, never in this one: else an expired permit could be
-- won back. The node frees other slots that it gave the permit. A permit that it repairs, or finds lost, also loses its
-- place in the queue here. The node learns the limit, unless it knows a newer one, which it then reports. So a limit
-- lasts as long as any permit that is renewed.
-- KEYS[6j-5..6j] semaphore j: claim: zset permit -> expiry, ms; slots: hash permit -> "slot,slot"; taken: bit map;
--        queue: zset owner -> ticket; places: hash owner -> "expiry wants channel"; limit: "version permits"
-- ARGV[4i-3] the semaphore's number   ARGV[4i-2] permit   ARGV[4i-1] its slots: "slot,slot"   ARGV[4i] its lease, ms
-- ARGV[4n+j] the limit of semaphore j as its holder knows it: "version permits"
-- ARGV[4n+m+1], if there are m semaphores: only if memory is guarded: 1
-- Reply: one integer per permit: 2 it had these slots, or those that a release of the others left; lengthened | 1 it
--        lacked some, repaired | 0 others have some | -1 the key holds another type. After these, if this node knows a
--        newer limit of any semaphore: for each semaphore its newer limit, or an empty text
local semaphores = #KEYS / 6
local permits = math.floor((#ARGV - semaphores) / 4)
local guarded = ARGV[4 * permits + semaphores + 1]
-- include: note_birth
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: limit

local function set(text)
  local members = {}
  for slot in string.gmatch(text or '', '%d+') do members[slot] = true end
  return members
end

-- Gives a permit exactly the wanted slots, or none if others have some of them; returns whether it has them.
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
for i = 1, permits do
  local j, permit, wanted, lease = tonumber(ARGV[4 * i - 3]), ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  local claim, slots, taken, queue, places = unpack(KEYS, 6 * j - 5, 6 * j - 1)
  local expiry = redis.pcall('zscore', claim, permit)
  local foreign = type(expiry) == 'table'
  if not foreign and not longest[j] then
    -- This ZREM changes nothing, but it is a write that needs no memory: after it, a node out of memory lets the script
    -- continue.
    redis.call('zrem', claim, '')
    -- If only some of the keys exist, the others expired on a former master, see _slots.lua; or the key has readers
    -- and writers.
    if redis.call('exists', claim, slots, taken) % 3 > 0 then
      foreign = string.match(redis.call('zrange', claim, 0, 0)[1] or '', '^[rw]:') ~= nil
      if not foreign then redis.call('del', claim, slots, taken) end
      expiry = false
    end
  end
  if foreign then
    reply[i] = -1
  else
    local text = expiry and redis.call('hget', slots, permit)
    reply[i] = text and tonumber(expiry) > now and 2 or 1
    longest[j] = math.max(longest[j] or 0, lease)
    if text ~= wanted then
      local has, lacks, late = set(text), false, text
      wanted = set(wanted)
      for slot in pairs(wanted) do lacks = lacks or not has[slot] end
      for slot in pairs(has) do late = late and wanted[slot] end
      -- A permit that has only wanted slots here, but not all: a release of the others has overtaken this renewal.
      if not (lacks and late) then
        if lacks then reply[i] = 1 end
        if rearrange(taken, has, wanted) then
          redis.call('hset', slots, permit, ARGV[4 * i - 1])
        else
          reply[i] = 0
          redis.call('zrem', claim, permit)
          redis.call('hdel', slots, permit)
        end
      end
    end
    if reply[i] < 2 then
      local waiter = string.match(permit, '^(.*):%d+$') or permit
      redis.call('zrem', queue, waiter)
      redis.call('hdel', places, waiter)
    end
    if reply[i] > 0 and (reply[i] == 1 or tonumber(expiry) < now + lease) then
      redis.call('zadd', claim, now + lease, permit)
    end
  end
end

-- The keys outlast the permits, and expire at one instant: a bit map must not outlive the permits of its bits.
local newer, any = {}, false
for j = 1, semaphores do
  local lease, claim, lengthened = longest[j], KEYS[6 * j - 5], false
  if lease and redis.call('exists', claim) == 0 then
    redis.call('del', KEYS[6 * j - 4], KEYS[6 * j - 3])
  elseif lease and redis.call('pttl', claim) < lease then
    for i = 6 * j - 5, 6 * j - 3 do redis.call('pexpireat', KEYS[i], now + 2 * lease) end
    lengthened = true
  end
  local limit = ARGV[4 * permits + j]
  local version = tonumber(string.match(limit, '^%d+'))
  local its_limit, its_version, _, its_window = read_limit(KEYS[6 * j])
  newer[j] = ''
  if its_version and its_version > version and its_window == '' then
    newer[j], any = its_limit, true
  elseif lease and ((its_version or -1) < version or version == 0 and lengthened) then
    write_limit(KEYS[6 * j], limit, version, lease)
  end
end
for j = 1, any and semaphores or 0 do reply[permits + j] = newer[j] end
return reply
