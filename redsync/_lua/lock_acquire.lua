-- Purpose: claim a reentrant lock or a mutex, or else take a place in its queue, in one atomic step: a refused waiter is
-- queued already, so no release can slip in between. A mutex is the canonical Redlock string of the Redis documentation,
-- `SET key value NX PX lease`, like that of every other implementation. Idempotent: the hold count is set, never added
-- to, and a mutex's claim is unique to one request.
-- KEYS[1] lock: hash claim -> hold count; or mutex: string, its claim
-- KEYS[2], KEYS[3] only from a waiter: queue: zset owner -> arrival ms;
--        places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] hold count to set; empty for a mutex   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant a new claim, ms, and under which
--        processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5..8] only from a waiter: how long to keep its place, ms; waited so far, ms; wake channel; id of this ask:
--        "<number>", or "<number>+<lease, ms>" for a hand-over with its own lease
-- Reply: 1 granted, new | 2 granted, was ours already | {remaining ms or -1, claim, 0} held by that claim; a waiter
--        also gets the number of waiters before it | 0 the key holds another type, no change
--        | error FORGETFUL <ms that this node remembers, or -1>
local is_mutex = ARGV[2] == ''
if redis.call('exists', KEYS[1]) == 0 then
  local guard = ARGV[4]
-- include: remembers
  if is_mutex then
    redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[3])
  else
    redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
    redis.call('pexpire', KEYS[1], ARGV[3])
  end
  if KEYS[2] then
-- include: leave_queue
  end
  return 1
end

local kept
if is_mutex then kept = redis.pcall('get', KEYS[1]) else kept = redis.pcall('hget', KEYS[1], ARGV[1]) end
if type(kept) == 'table' then return 0 end

if kept and (kept == ARGV[1] or not is_mutex) then
  if not is_mutex and kept ~= ARGV[2] then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end
  -- A repeated ask may lengthen the lease, never shorten it.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then redis.call('pexpire', KEYS[1], ARGV[3]) end
  if KEYS[2] then
-- include: leave_queue
  end
  return 2
end

local other = kept
if not is_mutex then
-- include: holder
  if not holder then return 0 end
  other = holder
end
local rank, ahead = nil, 0
if KEYS[2] then
-- include: waiter
-- include: take_place
end
return {redis.call('pttl', KEYS[1]), other, 0, rank}
