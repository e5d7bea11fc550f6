-- Purpose: make claims, and find the claim that keeps an owner out. Uses now and is_live of read_write.

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
local function find_blocker(key, owner, mode)
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
  if mode == 'r:' then return nil, nil, score < 0 and is_live(score) end
  -- The last claim may be the owner's own, and so may some before it: earlier holds, already released on other nodes.
  local at = -1
  repeat
    local last = redis.call('zrange', key, at, at, 'withscores')
    score = tonumber(last[2] or 0)
    if score > 0 and is_live(score) and owner_of(last[1]) ~= owner then return 'readers', math.floor(score) end
    at = at - 1
  until score <= 0
end
