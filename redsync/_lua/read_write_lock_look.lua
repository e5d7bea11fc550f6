-- Purpose: tell whether anybody reads, or writes; changes nothing.
-- KEYS[1] holders: zset "r:<owner>" or "w:<owner>" -> until ms + (count - 1) / 1024, the writer's negative
-- ARGV[1] r: reads | w: writes
-- Reply: 1 yes | 0 no
-- include: read_write
local at = ARGV[1] == 'w:' and 0 or -1
local claim = redis.pcall('zrange', KEYS[1], at, at, 'withscores')
if not claim[1] or string.sub(claim[1], 1, 2) ~= ARGV[1] then return 0 end
return is_live(claim[2]) and 1 or 0
