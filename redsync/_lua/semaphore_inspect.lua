-- Purpose: report which slots of a semaphore are taken, its limit, and who has permits. Removes expired permits first,
-- and keeps the limit of a resize that the asker knows, unless this node knows a newer one. Idempotent.
-- KEYS[1] claim: zset permit -> expiry, ms   KEYS[2] queue: zset owner -> ticket
-- KEYS[3] places: hash owner -> "expiry wants channel"   KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] taken: bit map   KEYS[6] limit: "version permits", of a rate limiter also its window, us
-- ARGV[1] how many permits to list, in the order in which they expire; -1: a page: the permits whose first slot is one
--        of the 1,000 from ARGV[3] on. A client that wants all permits asks page by page
-- ARGV[2] guard: how long this node must have remembered everything to reply, because free slots may be forgotten ones,
--        ms, and under which processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[3] the first slot of the page   ARGV[4] the limit's version; 0: the asker knows no resize   ARGV[5] the limit
-- ARGV[6] only for a rate limiter: its window, us
-- Reply: {version of the limit or -1, the limit or 0, bit map of the taken slots, {{permit, slots, remaining ms, the
--        record of its client, msgpack, once per client, or nothing}}, its window, us, or 0, how many slots the
--        waiters want, this node's clock, ms}
--        | 0 the key holds another type, no change | error FORGETFUL <ms that this node remembers, or -1>
-- include: slots
if not purge(math.huge) then return 0 end
local guard = ARGV[2]
-- include: remembers
local _, version, permits, window = read_limit(KEYS[6])
local asked, wanted = tonumber(ARGV[4]), tonumber(ARGV[5])
local its_own = ARGV[6] or ''
if asked > (version or 0) and (window or its_own) == its_own then
  write_limit(KEYS[6], ARGV[4] .. ' ' .. ARGV[5] .. (ARGV[6] and ' ' .. ARGV[6] or ''), asked)
  freed = freed + math.max(wanted - (permits or wanted), 0)
  version, permits, window = asked, wanted, its_own
end
wake_next()
local holders, told = {}, {}
local function tell(permit, slots, expiry)
  -- Our permits are "<client uuid>:<serial>:<number>"; the record's key depends on the holder, so it is not among KEYS.
  local client = string.match(permit, '^([%x-]+):%d+:%d+$') or ''
  local record = not told[client] and redis.pcall('get', tag .. 'redsync:client:' .. client)
  told[client] = true
  holders[#holders + 1] = {permit, slots, math.ceil(expiry - now), type(record) == 'string' and record or ''}
end
if ARGV[1] == '-1' then
  local first, entries = tonumber(ARGV[3]), redis.call('hgetall', KEYS[4])
  for i = 1, #entries, 2 do
    local slot = tonumber(string.match(entries[i + 1], '^%d+')) or -1
    if slot >= first and slot < first + 1000 then
      tell(entries[i], entries[i + 1], redis.call('zscore', KEYS[1], entries[i]) or now)
    end
  end
elseif ARGV[1] ~= '0' then
  local entries = redis.call('zrange', KEYS[1], 0, ARGV[1] - 1, 'withscores')
  for i = 1, #entries, 2 do tell(entries[i], redis.call('hget', KEYS[4], entries[i]) or '', entries[i + 1]) end
end
local awaited = math.max(slots_ahead(math.huge, ''), redis.call('zcard', KEYS[2]))
local taken = redis.call('get', KEYS[5]) or ''
return {version or -1, permits or 0, taken, holders, tonumber(window) or 0, awaited, now}
