-- Purpose: tell what is taken of a semaphore, its limit, and who has permits. Permits that have expired are taken away first.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset permit -> ticket
-- KEYS[3] places: hash permit -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] of how many permits to tell who has them, those that end first come first; 0: of none, -1: of all
-- ARGV[2] for how long this node must have remembered everything to be believed that there is room, ms; 0: does not matter
-- Reply: {version of the limit or -1, the limit or 0, bit map of what is taken, {{permit, slots, remaining ms, the record of
--        its client, msgpack, or nothing}}, its window, us, or 0, how many slots are wanted by those who wait} | 0 the key holds another type, nothing was changed
--        | error FORGETFUL <ms for which this node remembers, or -1>
-- include: slots
local at_most, all = 500, true
-- include: purge_permits
-- include: line
if foreign then return 0 end
-- include: wake_line
local guard = ARGV[2]
-- include: remembers
local version, permits, window = string.match(redis.call('get', KEYS[6]) or '', '^(%d+) (%d+) ?(%d*)$')
local holders, records = {}, {}
local last = ARGV[1] == '-1' and -1 or ARGV[1] - 1
local entries = ARGV[1] ~= '0' and redis.call('zrange', KEYS[1], 0, last, 'withscores') or {}
for i = 1, #entries, 2 do
  local permit, remaining = entries[i], entries[i + 1] - now
  if remaining > 0 then
    -- Permits of ours are "<client uuid>:<serial>"; the record's key depends on who holds, so it is not among KEYS.
    local client = string.match(permit, '^([%x-]+):%d+$') or ''
    if not records[client] then
      local record = redis.pcall('get', 'redsync:client:' .. client)
      records[client] = type(record) == 'string' and record or ''
    end
    holders[#holders + 1] = {permit, redis.call('hget', KEYS[4], permit) or '', remaining, records[client]}
  end
end
local wanted = math.max(line(math.huge, ''), redis.call('zcard', KEYS[2]))
return {tonumber(version) or -1, tonumber(permits) or 0, redis.call('get', KEYS[5]) or '', holders, tonumber(window) or 0, wanted}
