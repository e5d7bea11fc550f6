-- Purpose: grant a permit as many slots as it wants, or else let it wait in line, in one atomic step. First come, first
-- served: this node grants only if the free slots are enough for the asker and for all waiters before it. A first try
-- takes the first free slots from `start` on, cyclically: nodes on which the same slots are taken choose the same ones.
-- A further try wants exact slots: afterwards the permit has these and no others, or none at all. This node grants
-- nothing under a limit that is void, or older than the one it knows. From an ask under a newer limit, made by a
-- resize, it learns that limit, even if it refuses; from an ask under the programs' limit only if it grants.
-- Idempotent: a permit that already has slots keeps them.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] permit   ARGV[2] how many slots   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant, ms, and under which processes:
--        "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5] how long to keep its place, ms, 0: it does not wait   ARGV[6] its ticket, 0: none yet   ARGV[7] wake channel
-- ARGV[8] the limit's version   ARGV[9] the limit   ARGV[10] start   ARGV[11] exact slots, or nothing
-- ARGV[12] 1: report which slots are taken
-- ARGV[13] only for a rate limiter: its window, us
-- Reply: 2 + n one slot granted, the n-th after `start`, cyclically | "slot,slot" granted
--        | {"slot,slot", bit map of the slots taken now} granted, if ARGV[12] asks for the map
--        | {ms until enough slots have expired for the asker and the waiters before it, or -1, reason,
--        highest ticket, number of waiters before it, detail, permits} refused, for one of these reasons: "full": no
--        room; "taken": others have some of these slots, detail: bit map of the taken slots; "limit": this node knows
--        another limit of at least that version, or of another kind, or that version is void; detail: the limit that
--        this node knows, as at KEYS[6], if any, and permits: its permits
--        | 0 the key holds another type, no change | error FORGETFUL <ms that this node remembers, or -1>
local limit = ARGV[8] .. ' ' .. ARGV[9] .. (ARGV[13] and ' ' .. ARGV[13] or '')
local wants, version, permits = tonumber(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9])

-- The usual case: a first try for one slot, under the limit that this node knows. No waiter is queued, and the three
-- keys of the slots are there, or none is. The code below would do the same, with more commands. A limit of version 0
-- was never larger, so no slot beyond it can be taken. KEYS[2] counts four times.
local present = wants == 1 and ARGV[6] == '0' and ARGV[11] == '' and redis.call('get', KEYS[6]) == limit
    and redis.call('exists', KEYS[1], KEYS[4], KEYS[5], KEYS[2], KEYS[2], KEYS[2], KEYS[2])
if present == 3 or present == 0 then
  local time = redis.call('time')
  local now = time[1] * 1000 + time[2] / 1000

  -- True if there are permits, none has expired, and none may be a reader or writer: their second character is ':'.
  local function is_clean()
    local first = redis.pcall('zrange', KEYS[1], 0, 0, 'withscores')
    return first[1] and string.byte(first[1], 2) ~= 58 and tonumber(first[2]) > now
  end

  -- Where the first choice of a semaphore is free, expired permits do no harm. Those of a rate limiter must go at once:
  -- else nodes, which learn of successes at different instants, would soon choose different slots.
  local clean = ARGV[13] and present == 3 and is_clean()
  local usual = clean or present == 0 or not ARGV[13]
  if usual and version > 0 then
-- include: void
    usual = not is_void(version) and redis.call('bitcount', KEYS[5]) < permits
  end
  if usual then
    local guard = ARGV[4]
-- include: remembers
    local chosen = ARGV[10]
    if redis.call('setbit', KEYS[5], chosen, 1) == 1 then
      chosen = nil
      if clean or is_clean() then
-- include: pick_slots
        chosen = found[1]
        if chosen then redis.call('setbit', KEYS[5], chosen, 1) end
      end
    end
    if chosen then
      if redis.pcall('zadd', KEYS[1], 'nx', now + ARGV[3], ARGV[1]) == 1 then
        redis.call('hset', KEYS[4], ARGV[1], chosen)
-- include: keep_slots
-- include: keep_table
        if version == 0 and lengthened then
-- include: limit
          write_limit(KEYS[6], limit, version, ARGV[3])
        end
        return ARGV[12] == '1' and {tostring(chosen), redis.call('get', KEYS[5])} or 2 + (chosen - ARGV[10]) % permits
      end
      -- A permit that is there already has slots, or the key is of another type.
      redis.call('setbit', KEYS[5], chosen, 0)
    end
  end
end

-- include: slots
-- include: limit
local at_most = 4 + wants
-- include: purge_permits
if foreign then return 0 end
local me, window = ARGV[1], ARGV[13] or ''

-- include: line
-- include: waiter
local its_limit, its_version, its_permits, its_window = read_limit(KEYS[6])

local highest = tonumber(redis.call('zrange', KEYS[2], -1, -1, 'withscores')[2]) or 0
local queued = highest > 0
local mine = redis.call('hget', KEYS[4], me) or ''
local has, had = {}, 0
for slot in string.gmatch(mine, '%d+') do has[slot], had = true, had + 1 end

local reason, detail, chosen, room = 'full', '', nil, -1
local differs = is_void(version)
    or its_version and (its_version > version or its_version == version and its_limit ~= limit or its_window ~= window)
if had > 0 and ARGV[6] == '0' and ARGV[11] == '' then
  -- A first try that comes late or twice changes nothing, whatever has happened since: waiters, a resize.
  chosen = mine
elseif differs then
  reason, detail, permits = 'limit', its_limit or '', its_permits or permits
else
  if version > (its_version or 0) then
    write_limit(KEYS[6], limit, version)
    its_version = version
  end
  if ARGV[5] ~= '0' and ARGV[6] ~= '0' then
-- include: take_place_in_line
  end
  room = permits - redis.call('bitcount', KEYS[5]) + had - wants
end

if room >= 0 and (highest == 0 or line(room, waiter) <= room) then
  if ARGV[11] ~= '' then
    chosen = ARGV[11]
    for slot in string.gmatch(chosen, '%d+') do
      if not has[slot] and redis.call('getbit', KEYS[5], slot) == 1 then
        reason, chosen = 'taken', nil
        break
      end
    end
  elseif had > 0 then
    chosen = mine
  else
-- include: pick_slots
    chosen = table.concat(found, ',')
  end
end

if not chosen then
  -- A refused permit keeps nothing here, not even slots of an earlier round. So a refusal needs no rollback.
  if had > 0 then freed = freed + drop(me, mine) end
  if reason == 'taken' then detail = redis.call('get', KEYS[5]) or '' end
  tidy()
  pass_on()
-- include: wake_line
  local before = redis.call('zrank', KEYS[2], waiter)
-- include: time_left
  return {left, reason, math.max(highest, ARGV[6]), before or 0, detail, permits}
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
-- include: keep_slots
-- include: keep_table
-- include: keep_limit
if ARGV[6] ~= '0' then
  redis.call('zrem', KEYS[2], waiter)
  redis.call('hdel', KEYS[3], waiter)
end
pass_on()
-- include: wake_line
if ARGV[12] == '1' then return {chosen, redis.call('get', KEYS[5])} end
return chosen
