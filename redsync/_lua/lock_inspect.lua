-- Purpose: report the holders and waiters of a lock, mutex or read-write lock; changes nothing.
-- KEYS[1] lock: hash claim -> hold count; or mutex: string, its holder's value; or read-write lock: zset "r:<claim>" or
--         "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] latest fencing token, kept for a day
-- ARGV none
-- Reply: {type of the key, or "fenced" for a hash with a token, remaining ms (-2 none, -1 no expiry), {claim, count},
--         {waiting owners, longest wait first}, the record of the holder's client, msgpack, or nothing}. For a
--         read-write lock the third element lists the writer and the readers whose claims last longest, 64 at most:
--         {{claim, count, r or w, remaining ms, record or ""} ...}. For a semaphore it is empty
-- include: tag
local function find_record(claim)
  -- Our claims are "<client uuid>:<serial>:<number>"; the record's key depends on the holder, so it is not among KEYS.
  local client = string.match(claim or '', '^([%x-]+):%d+:%d+$')
  local record = client and redis.pcall('get', tag .. 'redsync:client:' .. client)
  return type(record) == 'string' and record or nil
end

local kind = redis.call('type', KEYS[1]).ok
local holder = {}
if kind == 'hash' then holder = redis.call('hgetall', KEYS[1]) end
if kind == 'string' then holder = {redis.call('get', KEYS[1]), '1'} end
if kind == 'hash' and redis.call('exists', KEYS[3]) == 1 then kind = 'fenced' end
if kind == 'zset' then
-- include: read_write
  local claims = redis.call('zrange', KEYS[1], 0, 0, 'withscores')
  if tonumber(claims[2]) > 0 then claims = {} end
  for _, word in ipairs(redis.call('zrevrange', KEYS[1], 0, 62, 'withscores')) do claims[#claims + 1] = word end
  local seen = {}
  for i = 1, #claims, 2 do
    local mode, claim = string.match(claims[i], '^([rw]):(.*)$')
    local score = math.abs(claims[i + 1])
    if mode and is_live(score) and not seen[claims[i]] then
      seen[claims[i]] = true
      local until_ms = math.floor(score)
      holder[#holder + 1] = {claim, (score - until_ms) * 1024 + 1, mode, until_ms - now, find_record(claim) or ''}
    end
  end
end

local waiting = redis.call('zrange', KEYS[2], 0, 99, 'withscores')
if waiting[2] and tonumber(waiting[2]) < 0 then
  local came = {}
  for i = 1, #waiting, 2 do
    if tonumber(waiting[i + 1]) < 0 then came[#came + 1] = {waiting[i], waiting[i + 1] + 2^52} end
  end
  waiting = redis.call('zrangebyscore', KEYS[2], 0, '+inf', 'withscores', 'limit', 0, 100)
  for i = 1, #waiting, 2 do came[#came + 1] = {waiting[i], tonumber(waiting[i + 1])} end
  table.sort(came, function(one, other) return one[2] < other[2] end)
  waiting = {}
  for i = 1, math.min(#came, 100) do
    waiting[2 * i - 1], waiting[2 * i] = came[i][1], came[i][2]
  end
end
local waiters = {}
for i = 1, #waiting, 2 do waiters[#waiters + 1] = waiting[i] end
return {kind, redis.call('pttl', KEYS[1]), holder, waiters, kind ~= 'zset' and find_record(holder[1]) or nil}
