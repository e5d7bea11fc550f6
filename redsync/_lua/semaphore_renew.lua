-- Purpose: lengthen many permits at once, of several semaphores. A permit that this node forgot gets its slots again if
-- they are free ("repaired"). It counts from the next renewal on, never in this one: else an expired permit could be
-- won back. The node frees other slots that it gave the permit. A permit that it repairs, or finds lost, also loses its
-- place in the queue here. The node learns the limit, unless it knows a newer one, which it then reports. So a limit
-- lasts as long as any permit that is renewed.
-- KEYS[6j-5..6j] semaphore j: claim: zset permit -> expiry, ms; queue: zset owner -> ticket; places: hash owner ->
--        "expiry wants channel"; slots: hash permit -> "slot,slot"; taken: bit map; limit: "version permits"
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
local every = KEYS
-- The functions of _slots.lua use the keys of the semaphore at hand.
local KEYS = {unpack(every, 1, 6)}
-- include: slots

local function set(text)
  local members = {}
  for slot in string.gmatch(text, '%d+') do members[slot] = true end
  return members
end

-- Lengthens one permit for that many ms; returns its code.
local function renew(permit, wanted, lease)
  local mine = redis.call('hget', KEYS[4], permit)
  local expiry = mine and tonumber(redis.call('zscore', KEYS[1], permit)) or 0
  local code = expiry > now and 2 or 1
  if mine ~= wanted then
    local has, wants, lacks, late, free = set(mine or ''), set(wanted), not mine, mine, true
    for slot in pairs(wants) do
      lacks = lacks or not has[slot]
      free = free and (has[slot] or redis.call('getbit', KEYS[5], slot) == 0)
    end
    for slot in pairs(has) do late = late and wants[slot] end
    -- A permit that has only wanted slots here, but not all: a release of the others has overtaken this renewal.
    if not (lacks and late) then
      if lacks then code = 1 end
      freed = freed + mark(mine or '', 0)
      if free then
        freed = freed - mark(wanted, 1)
        redis.call('hset', KEYS[4], permit, wanted)
      else
        code = 0
        drop(permit)
      end
    end
  end
  if code < 2 then
    local owner = string.match(permit, '^(.*):%d+$') or permit
    redis.call('zrem', KEYS[2], owner)
    redis.call('hdel', KEYS[3], owner)
  end
  if code > 0 and expiry < now + lease then redis.call('zadd', KEYS[1], now + lease, permit) end
  return code
end

local reply, numbers, newer, any = {}, {}, {}, false
for j = 1, semaphores do numbers[j], newer[j] = {}, '' end
for i = 1, permits do table.insert(numbers[tonumber(ARGV[4 * i - 3])], i) end
for j = 1, semaphores do
  KEYS, freed = {unpack(every, 6 * j - 5, 6 * j)}, 0
  local longest, foreign = 0, not purge(4)
  -- This ZREM changes nothing, but it is a write that needs no memory: after it, a node out of memory lets the script
  -- continue.
  if not foreign then redis.call('zrem', KEYS[1], '') end
  for _, i in ipairs(numbers[j]) do
    local lease = tonumber(ARGV[4 * i])
    reply[i] = foreign and -1 or renew(ARGV[4 * i - 2], ARGV[4 * i - 1], lease)
    if not foreign then longest = math.max(longest, lease) end
  end
  local lengthened = longest > 0 and keep_slots(longest)
  local limit = ARGV[4 * permits + j]
  local version = tonumber(string.match(limit, '^%d+'))
  local its_limit, its_version, _, its_window = read_limit(KEYS[6])
  if its_version and its_version > version and its_window == '' then
    newer[j], any = its_limit, true
  elseif longest > 0 and ((its_version or -1) < version or version == 0 and lengthened) then
    write_limit(KEYS[6], limit, version, longest)
  end
  pass_on()
  wake_next()
end
for j = 1, any and semaphores or 0 do reply[permits + j] = newer[j] end
return reply
