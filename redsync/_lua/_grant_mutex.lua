-- Purpose: claim a free mutex for its new holder; false if this node refuses to write. Uses KEYS[1] mutex.
local function grant(claim, ms)
  return redis.pcall('set', KEYS[1], claim, 'px', ms).ok ~= nil
end
