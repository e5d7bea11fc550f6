-- Purpose: walk along the waiters, from the front, as long as the slots that they want fit into `room`. A dead waiter
-- (its place has expired, or its client no longer listens) loses its place. Uses KEYS[1] claim, KEYS[2] queue, KEYS[3]
-- places, now, freed.
-- include: wake

-- Returns how many slots the waiters before `me` want, or all waiters if `me` has no place; more than `room` if they do
-- not fit. With `before`: wakes the waiters, except `me`, that fit into `room` and did not fit into `before`.
local function line(room, me, before)
  local ahead = 0
  local first = 0
  while first < 32 do
    local waiters = redis.call('zrange', KEYS[2], first, first + 15)
    if #waiters == 0 then return ahead end
    local places = redis.call('hmget', KEYS[3], unpack(waiters))
    for i, waiter in ipairs(waiters) do
      if waiter == me and not before then return ahead end
      local until_ms, wants, channel = string.match(places[i] or '', '^(%d+) (%d+) (.*)$')
      local lives = until_ms and tonumber(until_ms) > now
      if lives then
        ahead = ahead + wants
        if ahead > room then return ahead end
        if before and ahead > before and waiter ~= me and wake(channel, '0', waiter) == 0 then
          lives, ahead = false, ahead - wants
        end
      end
      if not lives then
        -- The waiters behind move up.
        if before then before = before - (wants or 0) else freed = freed + (wants or 0) end
        first = first - 1
        redis.call('zrem', KEYS[2], waiter)
        redis.call('hdel', KEYS[3], waiter)
      end
    end
    first = first + 16
  end
  return ahead
end
