-- Purpose: claim a mutex, or else take a place in its queue, in one atomic step. A claim is the canonical Redlock
-- string of the Redis documentation, `SET key value NX PX lease`, like that of every other implementation.
-- Idempotent: the value is unique to one request.
-- KEYS[1] mutex: string, the holder's value
-- KEYS[2], KEYS[3] only from a waiter: queue: zset owner -> arrival ms;
--        places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] value   ARGV[2] not used: a mutex is not reentrant   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant a new claim, ms, and under which
--        processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5..8] only from a waiter: how long to keep its place, ms; waited so far, ms; wake channel; id of this ask:
--        "<number>", or "<number>+<lease, ms>" for a hand-over with its own lease
-- Reply: 1 granted, new | 2 granted, was ours already | {remaining ms or -1, value} held by that value; a waiter also
--        gets the number of waiters before it | 0 the key holds another type, no change
--        | error FORGETFUL <ms that this node remembers, or -1>
if redis.call('exists', KEYS[1]) == 0 then
  local guard = ARGV[4]
-- include: remembers
  redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[3])
  if KEYS[2] then
-- include: leave_queue
  end
  return 1
end

local value = redis.pcall('get', KEYS[1])
if type(value) == 'table' then return 0 end
if value == ARGV[1] then
  -- The reply to an earlier try of this request was lost: the lease counts from this try.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
  if KEYS[2] then
-- include: leave_queue
  end
  return 2
end

local rank, ahead = nil, 0
if KEYS[2] then
-- include: waiter
-- include: take_place
end
return {redis.call('pttl', KEYS[1]), value, rank}
