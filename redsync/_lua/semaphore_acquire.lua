-- Purpose: grant a permit as many slots as it wants, or else let it wait in the queue, in one atomic step. First come, first
-- served: this node grants only if the free slots are enough for the asker and for all waiters before it. It grants the
-- exact slots that a further try wants, if they are free. Otherwise a permit that has slots keeps these, and another
-- one gets the first free slots from `start` on, cyclically: nodes on which the same slots are taken choose the same
-- ones. This node grants nothing under a limit older than the one it knows. From an ask under a newer limit, made by a
-- resize, it learns that limit, even if it refuses; from an ask under the programs' limit only if it grants. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] permit   ARGV[2] how many slots   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant, ms, and under which processes:
--        "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5] how long to keep its place, ms, 0: it does not wait   ARGV[6] its ticket, 0: none yet   ARGV[7] wake channel
-- ARGV[8] the limit's version   ARGV[9] the limit   ARGV[10] exact slots, or nothing   ARGV[11] start
-- ARGV[12] only for a rate limiter: its window, us
-- Reply: {"slot,slot", bit map of all slots taken now} granted
--        | {ms until enough slots have expired for the asker and the waiters before it, or -1, reason,
--        highest ticket, number of waiters before it, detail} refused, for one of these reasons: "full": no room;
--        "limit": this node knows another limit of at least that version, or of another kind, detail: that limit, as at
--        KEYS[6]
--        | 0 the key holds another type, no change | error FORGETFUL <ms that this node remembers, or -1>
local limit = ARGV[8] .. ' ' .. ARGV[9] .. (ARGV[12] and ' ' .. ARGV[12] or '')
local wants, version, permits = tonumber(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9])
-- include: slots
if not purge(4 + wants) then return 0 end
local me, window = ARGV[1], ARGV[12] or ''
local its_limit, its_version, its_permits, its_window = read_limit(KEYS[6])

local highest = tonumber(redis.call('zrange', KEYS[2], -1, -1, 'withscores')[2]) or 0
local mine = redis.call('hget', KEYS[4], me) or ''
local has, had = {}, 0
for slot in string.gmatch(mine, '%d+') do has[slot], had = true, had + 1 end

-- Returns the first free slots from `start` on, cyclically; the search skips bytes that are full.
local function first_free()
  local found, bits = {}, redis.call('get', KEYS[5]) or ''
  local function search(slot, last)
    while slot <= last and #found < wants do
      local position = math.floor(slot / 8) + 1
      local byte = string.byte(bits, position) or 0
      if byte == 255 then
        slot = ((string.find(bits, '[^\255]', position) or #bits + 1) - 1) * 8
      else
        if math.floor(byte / 2 ^ (7 - slot % 8)) % 2 == 0 then found[#found + 1] = slot end
        slot = slot + 1
      end
    end
  end
  search(tonumber(ARGV[11]), permits - 1)
  search(0, tonumber(ARGV[11]) - 1)
  return found
end

local reason, detail, chosen, room = 'full', '', nil, -1
local differs = its_version
    and (its_version > version or its_version == version and its_limit ~= limit or its_window ~= window)
if had > 0 and ARGV[6] == '0' and ARGV[10] == '' then
  -- A first try that comes late or twice changes nothing, whatever has happened since: waiters, a resize.
  chosen = mine
elseif differs then
  reason, detail, permits = 'limit', its_limit, its_permits
else
  if version > (its_version or 0) then
    write_limit(KEYS[6], limit, version)
    its_version = version
  end
  if ARGV[5] ~= '0' and ARGV[6] ~= '0' then join(wants) end
  room = permits - redis.call('bitcount', KEYS[5]) + had - wants
end

if room >= 0 and (highest == 0 or slots_ahead(room, waiter) <= room) then
  chosen = ARGV[10] ~= '' and ARGV[10] or nil
  for slot in string.gmatch(ARGV[10], '%d+') do
    if not has[slot] and redis.call('getbit', KEYS[5], slot) == 1 then chosen = nil end
  end
  if not chosen and had > 0 then
    chosen = mine
  elseif not chosen then
    chosen = table.concat(first_free(), ',')
  end
end

if not chosen then
  -- A refused permit keeps nothing here, not even slots of an earlier round. So a refusal needs no rollback.
  if had > 0 then freed = freed + drop(me, mine) end
  tidy()
  pass_on()
  local ahead = window == '' and 0 or slots_ahead(math.huge, waiter)
  wake_next()
  local before = redis.call('zrank', KEYS[2], waiter)
  -- How long it takes, if nothing is released, until enough slots have expired for the asker and for all waiters before
  -- it, of a rate limiter for what these want: so each looks when its turn may have come. Farther back slots must be
  -- taken once more: that counts as one lease. If permits have several slots, their average counts. For a rate limiter
  -- at most the window counts: until this node hears of a success, it keeps the slots for longer.
  local taken, longest = redis.call('bitcount', KEYS[5]), ARGV[12] and ARGV[12] / 1000 or tonumber(ARGV[3])
  local left, index = -1, math.max(ahead, before or redis.call('zcard', KEYS[2])) + wants - 1 - (permits - taken)
  if index >= taken then
    left = math.ceil(longest)
  elseif index >= 0 then
    local rank = math.ceil((index + 1) * redis.call('zcard', KEYS[1]) / taken) - 1
    local expiry = redis.call('zrange', KEYS[1], rank, rank, 'withscores')[2]
    left = math.ceil(ARGV[12] and math.min(expiry - now, longest) or expiry - now)
  end
  return {left, reason, math.max(highest, ARGV[6]), before or 0, detail}
end

local guard = ARGV[4]
-- include: remembers
-- A rate limiter's asks may get longer, and an earlier one may come late.
local expiry = had > 0 and tonumber(redis.call('zscore', KEYS[1], me)) or 0
redis.call('zadd', KEYS[1], math.max(expiry, now + ARGV[3]), me)
if chosen ~= mine then
  mark(mine, 0)
  mark(chosen, 1)
  redis.call('hset', KEYS[4], me, chosen)
end
-- The limit lasts as long as the permits that were granted under it.
local lengthened = keep_slots(ARGV[3])
if not differs and (its_version ~= version or version == 0 and lengthened) then
  write_limit(KEYS[6], limit, version, ARGV[3])
end
if ARGV[6] ~= '0' then
  redis.call('zrem', KEYS[2], waiter)
  redis.call('hdel', KEYS[3], waiter)
end
pass_on()
wake_next()
return {chosen, redis.call('get', KEYS[5])}
