-- Purpose: claim a fair lock, first come, first served, or else take a place in its queue, in one atomic step. A ticket
-- is one more than the highest that a quorum of nodes knew. Two quorums meet, so the waiter that finished queueing
-- first has the lower ticket on every node that knows both. A node grants a free lock to the head of the queue only.
-- The head then keeps its place: its client rolls the grant back if too few nodes granted, or too late, and a ticket
-- drawn until then must still come after it.
-- Idempotent: hold count and ticket are set, never added to.
-- KEYS[1] lock: hash claim -> hold count
-- KEYS[2] queue: zset owner -> ticket   KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] hold count to set   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant a new claim, ms, and under which
--        processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5..8] how long to keep its place, ms, 0: it does not wait; its ticket, 0: no place yet; wake channel; id of
--        this ask: "<number>", or "<number>+<lease, ms>" for a hand-over with its own lease, or 0
--        without a place
-- Reply: 1 granted, new | 2 granted, was ours already
--        | {remaining ms or -1, claim, the asker's ticket, or the highest ticket here if it has none} held by that
--        claim; or free, but that claim's turn: then remaining is that of its place. An asker with a place also
--        gets the number of waiters before it
--        | 0 the key holds another type, no change | error FORGETFUL <ms that this node remembers, or -1>
local free = redis.call('exists', KEYS[1]) == 0
local count = not free and redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' then return 0 end
-- include: holder
if not free and not holder then return 0 end

-- include: waiter
local highest = tonumber(redis.call('zrange', KEYS[2], -1, -1, 'withscores')[2]) or 0
if ARGV[6] ~= '0' and ARGV[5] ~= '0' then
  local time = redis.call('time')
  local now, score = time[1] * 1000 + math.floor(time[2] / 1000), ARGV[6]
-- include: write_place
  highest = tonumber(score)
end

if count then
  if count ~= ARGV[2] then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end
  -- A repeated ask may lengthen the lease, never shorten it.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
  return 2
end

local remaining
-- include: live_head
local rank = redis.call('zrank', KEYS[2], waiter) or nil
if free and head and head ~= waiter then holder, remaining = head .. ':' .. of, until_ms - now end
if not free then remaining = redis.call('pttl', KEYS[1]) end
if holder then return {remaining, holder, highest, rank} end

local guard = ARGV[4]
-- include: remembers
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
redis.call('pexpire', KEYS[1], ARGV[3])
return 1
