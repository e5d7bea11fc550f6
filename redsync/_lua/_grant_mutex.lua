-- Purpose: make a claim on a free mutex in the place of its new holder; false if this node refuses. Uses KEYS[1] mutex.
local function grant(owner, ms)
  return redis.pcall('set', KEYS[1], owner, 'px', ms).ok ~= nil
end
