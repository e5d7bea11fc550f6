-- Purpose: the bookkeeping of slots on one node. Invariants: a slot's bit is set if and only if one permit has the
-- slot, and the three keys expire together. Uses KEYS[1] claim, KEYS[4] slots, KEYS[5] taken. Sets now, ms, with
-- microseconds as its fraction (older versions wrote permits in whole ms), and freed: the number of slots that this
-- script has freed.
local time = redis.call('time')
local now = time[1] * 1000 + time[2] / 1000
local freed = 0

local function mark(slots, bit)
  local count = 0
  for slot in string.gmatch(slots, '%d+') do
    redis.call('setbit', KEYS[5], slot, bit)
    count = count + 1
  end
  return count
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
