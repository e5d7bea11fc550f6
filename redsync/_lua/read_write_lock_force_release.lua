-- Purpose: remove claims on a read-write lock, of its writer or of readers, and hand the lock over to the next waiters.
-- Idempotent. A late call is harmless, because it names the claims to remove.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV the claims to remove, "r:<claim>" or "w:<claim>", a few hundred at most
-- Reply: 1 one of them held it | 0 none did | -1 the key holds another type, no change
-- include: read_write_claims
local held = 0
for _, claim in ipairs(ARGV) do
  local score = redis.pcall('zscore', KEYS[1], claim)
  if type(score) == 'table' then return -1 end
  if score and is_live(score) then held = 1 end
  if score then redis.call('zrem', KEYS[1], claim) end
end
if held == 1 then hand_over() end
return held
