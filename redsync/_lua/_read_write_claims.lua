-- Purpose: the claims on one read-write lock: make them, find the one that keeps an owner out, and hand over. Uses
-- KEYS[1] holders, KEYS[2] queue, KEYS[3] places. Sets mode, "r:" or "w:", that of ARGV[1]; put, owner_of, find_blocker,
-- find_writer, hand_over; and what read_write and wake set.
-- include: read_write
-- include: wake
local mode = string.sub(ARGV[1], 1, 2)

-- Makes a claim, or sets its expiry and its hold count. Returns the node's reply: an error if it refuses to write. The
-- key lasts as long as the last of its claims; `alone`: there is no other.
local function put(key, member, until_ms, count, alone)
  local score = until_ms
  if count ~= '1' then score = score + math.min(count - 1, 1023) / 1024 end
  if string.sub(member, 1, 1) == 'w' then score = -score end
  local done = redis.pcall('zadd', key, score, member)
  if type(done) == 'number' and (alone or redis.call('pttl', key) < until_ms - now) then
    redis.call('pexpire', key, until_ms - now)
  end
  return done
end

-- Returns the owner of a claim.
local function owner_of(member)
  return string.match(member, '^[rw]:(.*):%d+$')
end

-- Returns the claim that keeps an owner out in that mode, and until when, ms; if there is none, the third value says
-- whether the owner writes. All readers together are "readers", because nodes may know different ones. Returns an empty
-- text if the key has the permits of a semaphore. Removes expired claims, at most 64 per call.
local function find_blocker(key, owner, wanted)
  local first = redis.call('zrange', key, 0, 0, 'withscores')
  if not first[1] then return end
  if not string.match(first[1], '^[rw]:') then return '' end
  local score = tonumber(first[2])
  if not is_live(score) then
    local past = string.format('(%.0f', now + 1)
    local expired = redis.call('zrangebyscore', key, string.format('(%.0f', -now - 1), past, 'limit', 0, 64)
    redis.call('zrem', key, unpack(expired))
  elseif score < 0 and owner_of(first[1]) ~= owner then
    return string.sub(first[1], 3), math.floor(-score)
  end
  if wanted == 'r:' then return nil, nil, score < 0 and is_live(score) end
  -- The last claim may be the owner's own, and so may some before it: earlier holds, already released on other nodes.
  -- All readers before one that has expired have expired, too.
  local at = -1
  repeat
    local last = redis.call('zrange', key, at, at, 'withscores')
    score = tonumber(last[2] or 0)
    if score > 0 and is_live(score) and owner_of(last[1]) ~= owner then return 'readers', math.floor(score) end
    at = at - 1
  until score <= 0 or not is_live(score)
end

-- Returns the writer that has waited longest, when it came, and until when it keeps its place, ms; nil if no writer
-- waits. The last value is the first waiter. Removes the expired places of writers. The arrivals of writers are stored
-- less 2^52, so writers stand before all readers in the queue.
local function find_writer()
  while true do
    local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
    if not first[1] or tonumber(first[2]) >= 0 then return nil, nil, nil, first[1] end
    local place = redis.call('hget', KEYS[3], first[1])
    local until_ms = place and string.match(place, '^(%d+) ')
    if until_ms and tonumber(until_ms) > now then return first[1], first[2] + 2^52, tonumber(until_ms), first[1] end
    redis.call('zrem', KEYS[2], first[1])
    redis.call('hdel', KEYS[3], first[1])
  end
end

-- Hands the lock over as far as its holders allow, in the very step in which they allow it: to all readers that have
-- waited longer than any writer, or, if there is no reader, to the writer that has waited longest. The claim of a new
-- holder lasts for the lease in its ask id, "<number>+<ms>", or else as long as its place. A message tells the new
-- holder: "<number or 0> <owner> <lock>". If it is 0, or this node has not remembered for as long as the waiter
-- requires, it only wakes the waiter; a writer then keeps its place, so that no new reader comes in before it. At most
-- 64 readers per call: the 64th is only woken, and its ask hands the lock over to the next 64; if it is gone, this call
-- does that. A waiter whose client no longer listens on this node (wake returned 0) loses claim and place.
local function hand_over()
  local told = false
  while not told and not find_blocker(KEYS[1], '', 'r:') do
    local writer, came = find_writer()
    local before = writer and string.format('(%.0f', came) or '+inf'
    local heirs, theirs = redis.call('zrangebyscore', KEYS[2], 0, before, 'limit', 0, 64), 'r:'
    if not heirs[1] and writer and not find_blocker(KEYS[1], writer, 'w:') then heirs, theirs = {writer}, 'w:' end
    if not heirs[1] then break end

    for i, heir in ipairs(heirs) do
      local place = redis.call('hget', KEYS[3], heir) or ''
      local until_ms, of, ask_id, guard, channel = string.match(place, '^(%d+) (%d+) (%S+) (%S+) (.*)$')
      local claim = theirs .. heir .. ':' .. (of or '')
      local had = redis.call('zscore', KEYS[1], claim)
      local stays, heard = false, false
      -- A renewal may already have made the claim here while its owner still had a place.
      if until_ms and tonumber(until_ms) > now and not (had and is_live(had)) then
        local needed = tonumber(string.match(guard, '^%d+'))
        if ask_id ~= '0' and needed > 0 then
-- include: memory
          if remembered < needed then ask_id = '0' end
        end
        local number, lease = string.match(ask_id, '^(%d+)%+(%d+)$')
        local ends = lease and now + lease or tonumber(until_ms)
        if i == 64 or ask_id ~= '0' and type(put(KEYS[1], claim, ends, '1')) == 'table' then ask_id, number = '0', nil end
        ask_id = number or ask_id
        heard = wake(channel, ask_id, heir) > 0
        if ask_id ~= '0' and not heard then redis.call('zrem', KEYS[1], claim) end
        stays = heard and ask_id == '0' and theirs == 'w:'
      end
      told = heard or told and i < 64
      if not stays then
        redis.call('zrem', KEYS[2], heir)
        redis.call('hdel', KEYS[3], heir)
      end
    end
  end
end
