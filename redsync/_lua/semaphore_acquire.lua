-- Purpose: grant a permit as many slots as it wants, or else let it wait in line, in one atomic step. First come, first
-- served: this node grants only if the free slots are enough for the asker and for all waiters before it. A first try
-- takes the first free slots from `start` on, cyclically: nodes on which the same slots are taken choose the same ones.
-- A further try wants exact slots: afterwards the permit has these and no others, or none at all. This node grants
-- nothing under a limit that is void, or older than the one it knows. An ask under a newer limit made by a resize
-- teaches it that limit, granted or not; the limit that programs bring along is written down with a grant only.
-- Idempotent: a permit that has slots already keeps them.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] permit   ARGV[2] how many slots   ARGV[3] lease, ms
-- ARGV[4] how long this node must have remembered everything before it grants, ms, and under which processes:
--        "<ms>,<process>,<process>,"; 0: does not matter
-- ARGV[5] how long to keep its place, ms, 0: it does not wait   ARGV[6] its ticket, 0: none yet   ARGV[7] wake channel
-- ARGV[8] the limit's version   ARGV[9] the limit   ARGV[10] start   ARGV[11] exact slots, or nothing
-- ARGV[12] 1: tell which slots are taken
-- ARGV[13] only for a rate limiter: its window, us
-- Reply: "slot,slot" granted | {"slot,slot", bit map of the slots taken now} granted, if ARGV[12] asks for the map
--        | {ms until enough slots have expired for the asker and the waiters before it, or -1, reason,
--        highest ticket, how many wait before it, detail, permits} refused, for one of these reasons: "full": no room;
--        "taken": others have some of these slots, detail: bit map of the taken slots; "limit": this node knows another
--        limit of at least that version, or of another kind, or that version is void; detail: the limit that this node
--        knows, as at KEYS[6], if any, and its permits
--        | 0 the key holds another type, nothing was changed | error FORGETFUL <ms that this node remembers, or -1>
-- include: slots
-- include: limit
local at_most = 4 + ARGV[2]
-- include: purge_permits
if foreign then return 0 end
local me, wants, version, permits = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9])

local window = ARGV[13] or ''
local limit = ARGV[8] .. ' ' .. ARGV[9] .. (ARGV[13] and ' ' .. window or '')
local void = is_void(version)

-- The usual case: a first try for one slot, under the limit that this node knows, and nobody waits. What follows would do
-- the same, with more questions. A limit of version 0 was never larger, so no slot beyond it can be taken.
if wants == 1 and ARGV[6] == '0' and ARGV[11] == '' and not void and redis.call('get', KEYS[6]) == limit
    and redis.call('exists', KEYS[2]) == 0 and (version == 0 or redis.call('bitcount', KEYS[5]) < permits) then
-- include: pick_slots
  if found[1] then
    local guard, its_version = ARGV[4], version
-- include: remembers
    -- A permit that is there already has slots: then see below.
    if redis.call('zadd', KEYS[1], now + ARGV[3], me) == 1 then
      local chosen = table.concat(found)
      redis.call('setbit', KEYS[5], chosen, 1)
      redis.call('hset', KEYS[4], me, chosen)
-- include: keep_slots
-- include: keep_limit
      return ARGV[12] == '1' and {chosen, redis.call('get', KEYS[5])} or chosen
    end
  end
end

-- include: line
-- include: waiter
local its_limit, its_version, its_permits, its_window = read_limit(KEYS[6])

local highest = tonumber(redis.call('zrange', KEYS[2], -1, -1, 'withscores')[2]) or 0
local queued = highest > 0
local mine = redis.call('hget', KEYS[4], me) or ''
local has, had = {}, 0
for slot in string.gmatch(mine, '%d+') do has[slot], had = true, had + 1 end

local reason, detail, chosen, room = 'full', '', nil, -1
local differs = its_version and (its_version > version or its_version == version and its_limit ~= limit or its_window ~= window)
if differs or void then
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
  local beyond = false
  for slot in pairs(has) do beyond = beyond or tonumber(slot) >= permits end
  if ARGV[11] ~= '' then
    chosen = ARGV[11]
    for slot in string.gmatch(chosen, '%d+') do
      if not has[slot] and redis.call('getbit', KEYS[5], slot) == 1 then
        reason, chosen = 'taken', nil
        break
      end
    end
  elseif had == wants and not beyond then
    chosen = mine
  else
    -- Another limit, or another try: choose anew.
    if had > 0 then drop(me, mine) end
    mine = ''
-- include: pick_slots
    chosen = table.concat(found, ',')
  end
end

if not chosen then
  -- A refused permit keeps nothing here, not even slots of an earlier round: so a refusal needs no rollback.
  if had > 0 then freed = freed + drop(me, mine) end
  if reason == 'taken' then detail = redis.call('get', KEYS[5]) or '' end
  tidy()
-- include: wake_line
  local before = redis.call('zrank', KEYS[2], waiter)
-- include: time_left
  return {left, reason, math.max(highest, ARGV[6]), before or 0, detail, permits}
end

local guard = ARGV[4]
-- include: remembers
redis.call('zadd', KEYS[1], now + ARGV[3], me)
if chosen ~= mine then
  mark(mine, 0)
  mark(chosen, 1)
  redis.call('hset', KEYS[4], me, chosen)
end
-- include: keep_slots
-- include: keep_limit
if ARGV[6] ~= '0' then
  redis.call('zrem', KEYS[2], waiter)
  redis.call('hdel', KEYS[3], waiter)
end
-- include: wake_line
if ARGV[12] == '1' then return {chosen, redis.call('get', KEYS[5])} end
return chosen
