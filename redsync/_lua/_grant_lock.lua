-- Purpose: claim a free lock for its new holder; false if this node refuses to write. Uses KEYS[1] lock.
local function grant(claim, ms)
  -- A refusal is a table.
  if type(redis.pcall('hset', KEYS[1], claim, '1')) == 'table' then return false end
  redis.call('pexpire', KEYS[1], ms)
  return true
end
