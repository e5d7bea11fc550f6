-- Purpose: the bookkeeping of slots on one node. Invariants: a slot's bit is set if and only if one permit has the
-- slot, and the three keys expire together. KEYS[4] also has fields such as ">17" -> ">permit 17": the success of a rate
-- limiter that gets slot 17 here as soon as it is free, see semaphore_settle. Uses KEYS[1] claim, KEYS[4] slots, KEYS[5]
-- taken. Sets now, ms, with microseconds as its fraction (older versions wrote permits in whole ms), and freed: the
-- number of slots that this script has freed.
local time = redis.call('time')
local now = time[1] * 1000 + time[2] / 1000
local freed = 0

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
local function settle(permit, wanted, mine)
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
      if mine then settle(permit, wanted, mine) end
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
