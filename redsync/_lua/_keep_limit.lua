-- Purpose: keep the limit. The one that programs bring along is forgotten a day after its last use; one that somebody has
-- set is kept for good. Uses KEYS[6] limit, ARGV[3] lease, ms, ARGV[8] version, ARGV[9] permits, version and its_version.
if version == 0 then
  redis.call('set', KEYS[6], '0 ' .. ARGV[9], 'px', math.max(86400000, ARGV[3]))
elseif its_version ~= version then
  redis.call('set', KEYS[6], ARGV[8] .. ' ' .. ARGV[9])
end
