-- Purpose: lengthen many mutexes at once (compare and PEXPIRE), and create again ("repair") claims that this node
-- forgot. A repaired claim counts from the next renewal on, never in this one: else an expired mutex could be won back.
-- KEYS[i] mutex i: string
-- ARGV[3i-2] its value   ARGV[3i-1] not used   ARGV[3i] its lease, ms
-- ARGV[3n+1] only if memory is guarded: 1
-- Reply: one integer per mutex: 2 ours, lengthened | 1 was missing, repaired | 0 another value holds it, or no memory
--        left to repair it | -1 the key holds another type
local guarded = ARGV[3 * #KEYS + 1]
-- include: note_birth
local reply = {}
for i, key in ipairs(KEYS) do
  local ours, lease = ARGV[3 * i - 2], ARGV[3 * i]
  local value = redis.pcall('get', key)
  if type(value) == 'table' then
    reply[i] = -1
  elseif value == ours then
    if redis.call('pttl', key) < tonumber(lease) then redis.call('pexpire', key, lease) end
    reply[i] = 2
  elseif not value and redis.pcall('set', key, ours, 'px', lease).ok then
    reply[i] = 1
  else
    reply[i] = 0
  end
end
return reply
