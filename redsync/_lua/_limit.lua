-- Purpose: the limit that this node knows: "version permits", of a rate limiter also its window, us. A version that a resize has
-- made is a hundredth of a second since 1970, times 16384, plus the permits. One that lies more than a year ahead of this
-- node's clock is void: no resize has made it, and the next resize could not exceed it. So a version of absurd size, whoever
-- tells it, is neither written down nor heeded. Uses now, ms.
local function is_void(version)
  return version / 16384 > now / 10 + 3162240000
end

-- Returns limit, version, permits, window, or nothing.
local function read_limit(key)
  local limit = redis.call('get', key) or ''
  local version, permits, window = string.match(limit, '^(%d+) (%d+) ?(%d*)$')
  version, permits = tonumber(version), tonumber(permits)
  if version and not is_void(version) and permits >= 1 and permits <= 10000 then return limit, version, permits, window end
end

-- The limit that programs bring along, version 0, is forgotten a day after its last use, or more if leases are long; one that
-- somebody has set is kept for good.
local function write_limit(key, limit, version, lease)
  if version > 0 then
    redis.call('set', key, limit)
  else
    redis.call('set', key, limit, 'px', math.max(86400000, 2 * lease))
  end
end
