-- Purpose: keep the limit as long as the permits that were granted under it. Uses KEYS[6] limit, ARGV[3] lease, ms,
-- limit, version, its_version, differs, lengthened, and the functions of _limit.lua.
if not differs and (its_version ~= version or version == 0 and lengthened) then
  write_limit(KEYS[6], limit, version, ARGV[3])
end
