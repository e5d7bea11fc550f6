-- Purpose: wake the waiters for which the `freed` slots make room. They keep their places until they are served. Uses
-- KEYS[6] limit, ARGV[1] the claim that freed the slots, whose owner is not woken, queued: true if there may be
-- waiters, and the functions of _limit.lua and _line.lua.
if freed > 0 and queued then
  local _, _, permits = read_limit(KEYS[6])
  -- A node that does not know the limit at least knows this room.
  local room = permits and permits - redis.call('bitcount', KEYS[5]) or freed
  line(room, string.match(ARGV[1] or '', '^(.*):%d+$') or '', room - freed)
end
