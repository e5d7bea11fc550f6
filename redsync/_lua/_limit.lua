-- Purpose: read and write the limit that this node knows: "version permits", for a rate limiter also its window, us.
-- A version made by a resize is the time since 1970 in hundredths of a second, times 16384, plus the permits. A version
-- more than a year ahead of this node's clock is void: no resize has made it, and the next resize could not exceed it.
-- So this node neither writes down nor heeds a void version, whoever tells it. Uses now, ms.
local function is_void(version)
  return version / 16384 > now / 10 + 3162240000
end

-- Returns limit, version, permits, window; nothing if the node knows no limit, or only a void one.
local function read_limit(key)
  local limit = redis.call('get', key) or ''
  local version, permits, window = string.match(limit, '^(%d+) (%d+) ?(%d*)$')
  version, permits = tonumber(version), tonumber(permits)
  if version and not is_void(version) and permits >= 1 and permits <= 10000 then return limit, version, permits, window end
end

-- Programs bring their limit along as version 0: it expires a day after its last use, or later if leases are long.
-- A limit that somebody has set is kept permanently.
local function write_limit(key, limit, version, lease)
  if version > 0 then
    redis.call('set', key, limit)
  else
    redis.call('set', key, limit, 'px', math.max(86400000, 2 * lease))
  end
end
