-- Purpose: read and write the limit that this node knows: "version permits", for a rate limiter also its window, us.

-- Returns limit, version, permits, window; nothing if the node knows no limit, or an impossible one.
local function read_limit(key)
  local limit = redis.call('get', key) or ''
  local version, permits, window = string.match(limit, '^(%d+) (%d+) ?(%d*)$')
  version, permits = tonumber(version), tonumber(permits)
  if version and version < 2 ^ 53 and permits >= 1 and permits <= 10000 then return limit, version, permits, window end
end

-- Programs state their limit as version 0. It expires a day after its last use, or later if leases are long. The limit
-- of a resize stays permanently.
local function write_limit(key, limit, version, lease)
  if version > 0 then
    redis.call('set', key, limit)
  else
    redis.call('set', key, limit, 'px', math.max(86400000, 2 * lease))
  end
end
