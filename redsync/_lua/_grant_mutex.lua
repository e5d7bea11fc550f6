-- Purpose: make a claim on a free mutex on behalf of its new holder; false if this node refuses. Uses KEYS[1] mutex.
local function grant(claim, ms)
  return redis.pcall('set', KEYS[1], claim, 'px', ms).ok ~= nil
end
