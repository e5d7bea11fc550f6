-- Purpose: lengthen many locks and mutexes at once, and create again ("repair") claims that this node forgot. A repaired
-- claim counts from the next renewal on, never in this one: else an expired lock could be won back.
-- KEYS[i] lock i: hash claim -> hold count; or mutex: string, its claim
-- ARGV[3i-2] our claim on it   ARGV[3i-1] its hold count; empty for a mutex   ARGV[3i] its lease, ms
-- ARGV[3n+1] only if memory is guarded: 1
-- Reply: one integer per lock: 2 ours, lengthened | 1 was missing, repaired | 0 another owner holds it, or no memory
--        left to repair it | -1 the key holds another type
local guarded = ARGV[3 * #KEYS + 1]
-- include: note_birth
local reply = {}
for i, key in ipairs(KEYS) do
  local claim, count, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local is_mutex, held = count == ''
  if is_mutex then held = redis.pcall('get', key) else held = redis.pcall('hget', key, claim) end
  if type(held) == 'table' then
    reply[i] = -1
  elseif held and (held == claim or not is_mutex) then
    if not is_mutex and held ~= count then redis.pcall('hset', key, claim, count) end
    if redis.call('pttl', key) < tonumber(lease) then redis.call('pexpire', key, lease) end
    reply[i] = 2
  elseif is_mutex then
    reply[i] = not held and redis.pcall('set', key, claim, 'px', lease).ok and 1 or 0
  elseif redis.call('exists', key) == 0 and type(redis.pcall('hset', key, claim, count)) == 'number' then
    redis.call('pexpire', key, lease)
    reply[i] = 1
  else
    reply[i] = 0
  end
end
return reply
