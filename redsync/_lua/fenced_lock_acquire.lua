-- Purpose: claim a reentrant lock with a fencing token, or else take a place in its queue, in one atomic step, as
-- lock_acquire does. Each grant gives a higher token. Idempotent except for the token: a repeated ask gets a higher one
-- than needed. A token is higher than this node's latest, than the highest that the asker knows, and than any that this
-- node may have forgotten.
-- KEYS[1] lock: hash claim -> hold count
-- KEYS[2], KEYS[3] only from a waiter: queue: zset owner -> arrival ms;
--        places: hash owner -> "expiry number ask-id guard channel"
-- KEYS[last - 1], KEYS[last] Redisson's token, which excludes ours; this node's latest token
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] hold count to set   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant a new claim, ms, and under which
--        processes: "<ms>,<process>,<process>,"
-- ARGV[5..8] only from a waiter: how long to keep its place, ms; waited so far, ms; wake channel; id of this ask:
--        "<number>", or "<number>+<lease, ms>" for a hand-over with its own lease
-- ARGV[last] the highest token that the asker knows, or 0
-- Reply: token granted, new | -token granted, was ours already
--        | {remaining ms or -1, claim, 0} held by that claim; a waiter also gets the number of waiters before it
--        | 0 the key holds another type, or Redisson issues tokens, no change | error FORGETFUL <ms that this node remembers, or -1>
local free = redis.call('exists', KEYS[1]) == 0
local count = not free and redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' or redis.call('exists', KEYS[#KEYS - 1]) == 1 then return 0 end

if not free and not count then
-- include: holder
  if not holder then return 0 end
  local rank, ahead = nil, 0
  if KEYS[4] then
-- include: waiter
-- include: take_place
  end
  return {redis.call('pttl', KEYS[1]), holder, 0, rank}
end

local guard = ARGV[4]
-- include: memory
if free then
-- include: refuse_forgetful
end
-- A value that is not a number is an error, and does not change.
local token = redis.call('incr', KEYS[#KEYS])
redis.call('pexpire', KEYS[#KEYS], 86400000)
local least = ARGV[#ARGV] + 1
-- A token below 3 counts as none, because a reply of 1 or 2 means a grant without one.
if since and token > 2 then
  -- It gave the tokens that it forgot before its birth, and no token is ahead of the clock, in microseconds since 1970.
  -- This node grants only after the guard, and the clocks of nodes may differ by that much.
  if kind ~= 'original' then least = math.max(least, (since + string.match(guard, '^%d+')) * 1000) end
else
  -- A node whose birth record does not count is treated as born now. So is a node without a token: tokens are kept
  -- for a day, in which the clock advances by more than any number of grants.
  local time = redis.call('time')
  least = math.max(least, time[1] * 1000000 + time[2])
end
if token < least then
  token = least
  redis.call('set', KEYS[#KEYS], string.format('%.0f', token), 'px', 86400000)
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
-- A repeated ask may lengthen the lease, never shorten it.
if free or redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
if KEYS[4] then
-- include: leave_queue
end
return free and token or -token
