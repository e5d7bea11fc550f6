-- Purpose: report all that one node keeps under a name, whatever kind of synchronizer it is; changes nothing.
-- KEYS[1] claim: hash claim -> hold count (lock); string (mutex); zset permit -> expiry, ms (semaphore, rate limiter)
--        or "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative (read-write lock)
-- KEYS[2] queue: zset owner -> rank   KEYS[3] places: hash owner -> "expiry ..."
-- KEYS[4] slots: hash permit -> "slot,slot"
-- KEYS[5] limit: "version permits", for a rate limiter also its window, us   KEYS[6] latest fencing token
-- KEYS[7] latch: hash generation, size, client -> total   KEYS[8] its waiters: zset -> expiry, ms
-- ARGV[1] the most holders to list   ARGV[2] the most waiters to list; 0: it counts none, and reads no records
-- ARGV[3] only for one name: a claim that never expires counts, too; 1: from a program with a lock of that name, to
--        which permits do not count; 2: permits do
-- Reply: {kind ("none", or the type of a foreign value),
--        {{claim, count, "r", "w" or "", remaining ms, -1 never, record} ... the writer, then the first to end},
--        number of holders,
--        {{owner, record} ... longest wait first}, number of waiters, permits or 0, window, us, or 0,
--        {size of the latch, count left, remaining ms, number of waiters} or {}}; a record is msgpack, or empty
-- include: read_write
local most = tonumber(ARGV[1])

-- include: tag
local function find_record(owner)
  -- Our owners are "<client uuid>:<serial>"; the record's key depends on the holder, so it is not among KEYS.
  local client = ARGV[2] ~= '0' and string.match(owner, '^([%x-]+):%d+')
  local record = client and redis.pcall('get', tag .. 'redsync:client:' .. client)
  return type(record) == 'string' and record or ''
end

local holders, held, holds = {}, 0, {}
local function tell_holder(claim, count, mode, remaining)
  holds[string.match(claim, '^(.*):%d+$') or claim] = true
  if #holders < most then holders[#holders + 1] = {claim, count, mode, remaining, find_record(claim)} end
end

-- Counts the claims with such scores, and returns the first ones: there may be thousands.
local function find_claims(first, last)
  held = held + redis.call('zcount', KEYS[1], first, last)
  return redis.call('zrangebyscore', KEYS[1], first, last, 'withscores', 'limit', 0, most)
end

local kind, pttl = redis.call('type', KEYS[1]).ok, redis.call('pttl', KEYS[1])
local limit, live = redis.pcall('get', KEYS[5]), string.format('%.0f', now + 1)
local version, permits, window = string.match(type(limit) == 'string' and limit or '', '^(%d+) (%d+) ?(%d*)$')
local first = kind == 'zset' and redis.call('zrange', KEYS[1], 0, 0)[1]
local modes = first and string.match(first, '^[rw]:')
-- The claims decide before the limit, which nodes keep longer. A repaired node may know permits, but no limit yet.
local counts = not modes and (version or kind == 'zset' and redis.call('exists', KEYS[4]) == 1)
if counts and (kind == 'zset' or kind == 'none' and ARGV[3] ~= '1') then
  kind = tonumber(window) and 'rate limiter' or 'semaphore'
  local claims = ARGV[3] == '1' and {} or find_claims(live, '+inf')
  for i = 1, #claims, 2 do
    local slots = redis.pcall('hget', KEYS[4], claims[i])
    local _, commas = string.gsub(type(slots) == 'string' and slots or '', ',', '')
    tell_holder(claims[i], commas + 1, '', claims[i + 1] - now)
  end
elseif modes then
  kind = 'read-write lock'
  for _, range in ipairs({{'-inf', '-' .. live}, {live, '+inf'}}) do
    local claims = find_claims(range[1], range[2])
    for i = 1, #claims, 2 do
      local mode, claim = string.match(claims[i], '^([rw]):(.*)$')
      local score = math.abs(claims[i + 1])
      if mode then tell_holder(claim, (score - math.floor(score)) * 1024 + 1, mode, math.floor(score) - now) end
    end
  end
elseif kind == 'hash' and redis.call('hlen', KEYS[1]) == 1 then
  local claim = redis.call('hgetall', KEYS[1])
  if tonumber(claim[2]) and string.match(claim[1], ':%d+$') then
    kind, held = redis.call('exists', KEYS[6]) == 1 and 'fenced lock' or 'lock', 1
    tell_holder(claim[1], tonumber(claim[2]), '', pttl)
  end
elseif kind == 'string' and (ARGV[3] or pttl >= 0 and string.len(redis.call('get', KEYS[1])) <= 256) then
  kind, held = 'mutex', 1
  tell_holder(redis.call('get', KEYS[1]), 1, '', pttl)
end

-- A waiting writer has a rank far below zero, so that it comes first. But people want to know who has waited longest.
local waiters, came, waiting = {}, {}, ARGV[2] ~= '0' and redis.pcall('zrange', KEYS[2], 0, -1, 'withscores') or {}
for i = 1, #waiting, 2 do
  local place = redis.pcall('hget', KEYS[3], waiting[i])
  local until_ms = type(place) == 'string' and string.match(place, '^(%d+) ')
  if until_ms and tonumber(until_ms) > now and not holds[waiting[i]] then
    local rank = tonumber(waiting[i + 1])
    came[#came + 1] = {waiting[i], rank < 0 and rank + 2^52 or rank}
  end
end
table.sort(came, function(one, other) return one[2] < other[2] end)
for i = 1, math.min(#came, ARGV[2]) do waiters[i] = {came[i][1], find_record(came[i][1])} end

local latch, size = {}, redis.pcall('hget', KEYS[7], 'size')
if type(size) == 'string' and tonumber(size) > 0 then
  local left, fields = tonumber(size), redis.call('hgetall', KEYS[7])
  for i = 1, #fields, 2 do
    if fields[i] ~= 'generation' and fields[i] ~= 'size' then left = left - fields[i + 1] end
  end
  latch = {tonumber(size), math.max(left, 0), redis.call('pttl', KEYS[7]), redis.call('zcount', KEYS[8], live, '+inf')}
end
return {kind, holders, held, waiters, #came, tonumber(permits) or 0, tonumber(window) or 0, latch}
