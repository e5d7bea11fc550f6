-- Purpose: report which slots of a semaphore are taken, its limit, and who has permits. Removes expired permits first,
-- and keeps the limit of a resize that the asker knows, unless this node knows a newer one. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] how many permits to list, in the order in which they expire
-- ARGV[2] guard: how long this node must have remembered everything to reply, because free slots may be forgotten ones,
--        ms, and under which processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[3] the limit's version; 0: the asker knows no resize   ARGV[4] the limit
-- ARGV[5] only for a rate limiter: its window, us
-- Reply: {version of the limit or -1, the limit or 0, bit map of the taken slots, {{permit, slots, remaining ms, the
--        record of its client, msgpack, once per client and up to 6 MB in all, or nothing}}, its window, us, or 0, how
--        many slots the waiters want, this node's clock, ms}
--        | 0 the key holds another type, no change | error FORGETFUL <ms that this node remembers, or -1>
-- include: slots
if not purge(math.huge) then return 0 end
local guard = ARGV[2]
-- include: remembers
local _, version, permits, window = read_limit(KEYS[6])
local asked, wanted = tonumber(ARGV[3]), tonumber(ARGV[4])
local its_own = ARGV[5] or ''
if asked > (version or 0) and (window or its_own) == its_own then
  write_limit(KEYS[6], ARGV[3] .. ' ' .. ARGV[4] .. (ARGV[5] and ' ' .. ARGV[5] or ''), asked)
  freed = freed + math.max(wanted - (permits or wanted), 0)
  version, permits, window = asked, wanted, its_own
end
wake_next()
local holders, told, size = {}, {}, 0
local entries = ARGV[1] == '0' and {} or redis.call('zrange', KEYS[1], 0, ARGV[1] - 1, 'withscores')
for i = 1, #entries, 2 do
  -- Our permits are "<client uuid>:<serial>:<number>"; the record's key depends on the holder, so it is not among KEYS.
  local client = string.match(entries[i], '^([%x-]+):%d+:%d+$') or ''
  -- Clients end a connection whose reply exceeds 8 MB.
  local record = not told[client] and size < 6e6 and redis.pcall('get', tag .. 'redsync:client:' .. client)
  record = type(record) == 'string' and record or ''
  told[client], size = true, size + #record
  local slots, left = redis.call('hget', KEYS[4], entries[i]) or '', math.ceil(entries[i + 1] - now)
  holders[#holders + 1] = {entries[i], slots, left, record}
end
local awaited = math.max(slots_ahead(math.huge, ''), redis.call('zcard', KEYS[2]))
local taken = redis.call('get', KEYS[5]) or ''
return {version or -1, permits or 0, taken, holders, tonumber(window) or 0, awaited, now}
