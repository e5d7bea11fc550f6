-- Purpose: report some of this node's keys that match a pattern; changes nothing. Each node has its own cursors, but gets
-- the same command as the others: so all but the process that is meant reply without a scan.
-- KEYS[1] any key with this client's prefix
-- ARGV[1] pattern, without a voter's tag   ARGV[2] cursor   ARGV[3] the process that is meant; empty: each
-- Reply: {process, next cursor, 0 after the last, {key without a voter's tag ...}}
-- include: process
-- include: tag
if ARGV[3] ~= '' and ARGV[3] ~= process then return {process, '0', {}} end
local found, keys = redis.call('scan', ARGV[2], 'match', tag .. ARGV[1], 'count', 1000), {}
for i, key in ipairs(found[2]) do keys[i] = string.sub(key, #tag + 1) end
return {process, found[1], keys}
