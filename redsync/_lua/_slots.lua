-- Purpose: the bookkeeping of a semaphore's slots and waiters on one node. Invariants: a slot's bit is set if and only
-- if one permit has the slot, and the three keys of slots expire together. KEYS[4] also has fields such as ">17" ->
-- ">permit 17": the success of a rate limiter that gets slot 17 here as soon as it is free, see semaphore_confirm.
-- Uses the KEYS of semaphore_acquire and ARGV[1] permit. Sets waiter: its owner; now, ms, with microseconds as its
-- fraction; and freed: the number of slots that this script has freed for waiters.
-- include: wake
-- include: waiter
local time = redis.call('time')
local now = time[1] * 1000 + time[2] / 1000
local freed = 0

-- Returns the limit, "version permits", and its version, permits and window, us; nothing if this node knows none, or an
-- impossible one.
local function read_limit(key)
  local limit = redis.call('get', key) or ''
  local version, permits, window = string.match(limit, '^(%d+) (%d+) ?(%d*)$')
  version, permits = tonumber(version), tonumber(permits)
  if version and version < 2 ^ 53 and permits >= 1 and permits <= 10000 then return limit, version, permits, window end
end

-- Programs state their limit as version 0. It expires a day after its last use, or later if leases are long. The limit
-- of a resize stays permanently.
local function write_limit(key, limit, version, lease)
  if version > 0 then
    redis.call('set', key, limit)
  else
    redis.call('set', key, limit, 'px', math.max(86400000, 2 * lease))
  end
end

-- The slots that this script has freed, for pass_on.
local emptied = {}

local function mark(slots, bit)
  local count = 0
  for slot in string.gmatch(slots, '%d+') do
    redis.call('setbit', KEYS[5], slot, bit)
    if bit == 0 then emptied[#emptied + 1] = slot end
    count = count + 1
  end
  return count
end

-- Gives a success the wanted slots instead of its present ones; if others have some of them, as soon as these are free.
local function assign(permit, wanted, mine)
  local has, free = {}, true
  for slot in string.gmatch(mine, '%d+') do has[slot] = true end
  for slot in string.gmatch(wanted, '%d+') do
    if not has[slot] and redis.call('getbit', KEYS[5], slot) == 1 then
      redis.call('hset', KEYS[4], '>' .. slot, '>' .. permit .. ' ' .. wanted)
      free = false
    end
  end
  if free and mine ~= wanted then
    freed = freed + mark(mine, 0) - mark(wanted, 1)
    redis.call('hset', KEYS[4], permit, wanted)
  end
end

-- Passes the slots that this script has freed on to the successes that should have them; that may free others.
local function pass_on()
  while #emptied > 0 do
    local slot = table.remove(emptied)
    local due = redis.call('hget', KEYS[4], '>' .. slot)
    if due then
      redis.call('hdel', KEYS[4], '>' .. slot)
      local permit, wanted = string.match(due, '^>(.*) (.*)$')
      local mine = redis.call('hget', KEYS[4], permit)
      if mine then assign(permit, wanted, mine) end
    end
  end
end

-- Frees a permit's slots; returns how many there were. Writes that need no memory come first: after them a node out of
-- memory lets the script continue.
local function drop(permit, slots)
  redis.call('zrem', KEYS[1], permit)
  redis.call('hdel', KEYS[4], permit)
  return mark(slots or '', 0)
end

local function tidy()
  if redis.call('exists', KEYS[1]) == 0 then redis.call('del', KEYS[4], KEYS[5]) end
end

-- Makes the keys of slots outlast a permit, and expire at one instant: a bit map must not outlive the permits that its
-- bits stand for. They last twice the lease, so that not every call must lengthen them. Keys end at a whole
-- millisecond, permits at a fraction of one: so the keys must last for a millisecond more. Returns whether this call
-- lengthened them.
local function keep_slots(lease)
  local lengthened = redis.call('pttl', KEYS[1]) < lease + 1
  if lengthened then
    for _, key in ipairs({KEYS[1], KEYS[4], KEYS[5]}) do redis.call('pexpireat', key, math.floor(now + 2 * lease)) end
  end
  return lengthened
end

-- Removes expired permits, by this node's clock alone, `at_most` per call so that a script stays quick. The others keep
-- their slots a little longer, which is harmless. If all permits have expired, it deletes the keys as a whole, however
-- many permits there are. It passes at most 1,000 values to a command: Lua can't pass more than about 8,000. Returns
-- false if the key holds another type, or readers and writers.
local function purge(at_most)
  local first = redis.pcall('zrange', KEYS[1], 0, 0, 'withscores')
  if first.err or string.match(first[1] or '', '^[rw]:') then return false end
  -- A master expires the three keys one by one, as it comes to them, and tells its replicas. A promoted replica whose
  -- clock is behind may have only some of them: slots that would never be released. In that case all permits have
  -- expired.
  if redis.call('exists', KEYS[1], KEYS[4], KEYS[5]) % 3 > 0 then
    redis.call('del', KEYS[1], KEYS[4], KEYS[5])
    first = {}
  end
  if first[1] and tonumber(first[2]) <= now then
    repeat
      local batch = math.min(at_most, 1000)
      local expired = redis.call('zrangebyscore', KEYS[1], '-inf', now, 'limit', 0, batch)
      if #expired == batch and tonumber(redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]) <= now then
        freed = freed + redis.call('bitcount', KEYS[5])
        redis.call('del', KEYS[1], KEYS[4], KEYS[5])
      elseif #expired > 0 then
        local slots = redis.call('hmget', KEYS[4], unpack(expired))
        redis.call('zrem', KEYS[1], unpack(expired))
        redis.call('hdel', KEYS[4], unpack(expired))
        for i = 1, #expired do freed = freed + mark(slots[i] or '', 0) end
        tidy()
      end
      at_most = at_most - batch
    until #expired < batch or at_most == 0
    pass_on()
  end
  return true
end

-- Takes the place of a ticket in the queue, or keeps it for longer; it wants that many slots. Uses ARGV[5] how long to
-- keep it, ms, ARGV[6] ticket, ARGV[7] wake channel.
local function join(wants)
  redis.call('zadd', KEYS[2], ARGV[6], waiter)
  redis.call('hset', KEYS[3], waiter, string.format('%.0f ', now + ARGV[5]) .. wants .. ' ' .. ARGV[7])
  if redis.call('pttl', KEYS[2]) < tonumber(ARGV[5]) then
    redis.call('pexpire', KEYS[2], ARGV[5])
    redis.call('pexpire', KEYS[3], ARGV[5])
  end
end

-- Leaves the queue. The waiters behind move up by the slots that this one wanted.
local function leave()
  local place = waiter and redis.call('hget', KEYS[3], waiter)
  if place then
    freed = freed + (string.match(place, '^%d+ (%d+) ') or 0)
    redis.call('zrem', KEYS[2], waiter)
    redis.call('hdel', KEYS[3], waiter)
  end
end

-- Walks along the waiters, from the front, as long as the slots that they want fit into `room`. A dead waiter (its place
-- has expired, or its client no longer listens) loses its place. Returns how many slots the waiters before `me` want, or
-- all waiters if `me` has no place; more than `room` if they do not fit. With `before`: wakes the waiters, except `me`,
-- that fit into `room` and did not fit into `before`.
local function slots_ahead(room, me, before)
  local ahead = 0
  local first = 0
  while first < 32 do
    local waiters = redis.call('zrange', KEYS[2], first, first + 15)
    if #waiters == 0 then return ahead end
    local places = redis.call('hmget', KEYS[3], unpack(waiters))
    for i, each in ipairs(waiters) do
      if each == me and not before then return ahead end
      local until_ms, wants, channel = string.match(places[i] or '', '^(%d+) (%d+) (.*)$')
      local lives = until_ms and tonumber(until_ms) > now
      if lives then
        ahead = ahead + wants
        if ahead > room then return ahead end
        if before and ahead > before and each ~= me and wake(channel, '0', each) == 0 then
          lives, ahead = false, ahead - wants
        end
      end
      if not lives then
        -- The waiters behind move up.
        if before then before = before - (wants or 0) else freed = freed + (wants or 0) end
        first = first - 1
        redis.call('zrem', KEYS[2], each)
        redis.call('hdel', KEYS[3], each)
      end
    end
    first = first + 16
  end
  return ahead
end

-- Wakes the waiters, except the owner of ARGV[1], for which the `freed` slots make room. They keep their places until
-- they are served.
local function wake_next()
  if freed > 0 and redis.call('exists', KEYS[2]) == 1 then
    local _, _, permits = read_limit(KEYS[6])
    -- A node that does not know the limit at least knows this room.
    local room = permits and permits - redis.call('bitcount', KEYS[5]) or freed
    slots_ahead(room, waiter, room - freed)
  end
end
