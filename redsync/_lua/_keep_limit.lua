-- Purpose: keep the limit. The one that programs bring along is forgotten a day after its last use, or more if leases are long;
-- one that somebody has set is kept for good. Uses KEYS[6] limit, ARGV[3] lease, ms, limit, version, its_version,
-- lengthened.
if its_version ~= version then
  redis.call('set', KEYS[6], limit)
end
if version == 0 and (lengthened or its_version ~= version) then
  redis.call('pexpire', KEYS[6], math.max(86400000, 2 * ARGV[3]))
end
