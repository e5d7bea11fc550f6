-- Purpose: wake those for whom there is room now that was not there before `freed` slots came back. They keep their places
-- until they are served. Uses KEYS[6] limit, ARGV[1] who caused it and is not to be woken, and what _line.lua defines.
if freed > 0 and redis.call('exists', KEYS[2]) == 1 then
  local permits = string.match(redis.call('get', KEYS[6]) or '', '^%d+ (%d+)')
  -- Who does not know the limit knows at least of this room.
  local room = permits and permits - redis.call('bitcount', KEYS[5]) or freed
  line(room, ARGV[1], room - freed)
end
