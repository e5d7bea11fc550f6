-- Purpose: refuse to grant if this node has not remembered everything for as long as the guard requires.
-- Uses guard, and the results of _memory.lua.
if remembered ~= math.huge then
  local needed = tonumber(string.match(guard, '^%d+'))
  if needed > 0 and foreign then return foreign end
  if needed > 0 and remembered < needed then return redis.error_reply(string.format('FORGETFUL %.0f', remembered)) end
end
