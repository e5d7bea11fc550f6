-- Purpose: list the claims of readers, or of the writer; changes nothing.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- ARGV[1] "r:" readers | "w:" the writer   ARGV[2] the most claims to list, those that last longest
-- Reply: {"r:<claim>" or "w:<claim>" ...} | -1 the key holds another type
-- include: read_write
local found = redis.pcall(ARGV[1] == 'w:' and 'zrange' or 'zrevrange', KEYS[1], 0, ARGV[2] - 1, 'withscores')
if found.err or found[1] and not string.match(found[1], '^[rw]:') then return -1 end
local claims = {}
for i = 1, #found, 2 do
  if string.sub(found[i], 1, 2) == ARGV[1] and is_live(found[i + 1]) then claims[#claims + 1] = found[i] end
end
return claims
