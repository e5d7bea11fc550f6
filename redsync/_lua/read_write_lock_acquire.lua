-- Purpose: claim a read-write lock to read, alongside other readers, or to write, alone; or else take a place in the
-- queue; in one atomic step. This node refuses a reader while another owner writes, or while an earlier writer waits,
-- but never an owner that already reads or writes. It refuses a writer while another owner reads or writes; its place
-- keeps new readers out.
-- Idempotent: the hold count is set, never added to.
-- KEYS[1] holders: zset "r:<claim>" or "w:<claim>" -> expiry ms + (count - 1) / 1024, the writer's negative
-- KEYS[2] queue: zset owner -> arrival ms, a writer's less 2^52
-- KEYS[3] places: hash owner -> "expiry number ask-id guard channel"
-- ARGV[1] claim and its mode: "r:<owner>:<number>" or "w:<owner>:<number>"
-- ARGV[2] hold count to set   ARGV[3] lease, ms
-- ARGV[4] guard: how long this node must have remembered everything to grant a new claim, ms, and under which
--        processes: "<ms>,<process>,<process>,"; 0: no guard
-- ARGV[5..8] only from a waiter: how long to keep its place, ms; waited so far, ms; wake channel; id of this ask:
--        "<number>", or "<number>+<lease, ms>" for a hand-over with its own lease
-- Reply: 1 granted, new | 2 granted, was ours already | {remaining ms, a claim, "readers" or "writers", 0} refused;
--        a waiter also gets the number of waiters before it, roughly | 0 the key holds another type, no change
--        | error FORGETFUL <ms that this node remembers, or -1>
-- include: read_write_claims
local guard = ARGV[4]
-- include: waiter
if redis.call('exists', KEYS[1], KEYS[2]) == 0 then
-- include: remembers
  local refusal = put(KEYS[1], ARGV[1], now + ARGV[3], ARGV[2], true)
  return type(refusal) == 'table' and refusal or 1
end

local had = redis.pcall('zscore', KEYS[1], ARGV[1])
if type(had) == 'table' then return 0 end
if had and is_live(had) then
  -- A repeated ask may lengthen the lease, never shorten it.
  local refusal = put(KEYS[1], ARGV[1], math.max(now + ARGV[3], math.floor(math.abs(had))), ARGV[2])
  if type(refusal) == 'table' then return refusal end
  if ARGV[5] then
-- include: leave_queue
  end
  return 2
end

local blocker, blocked_until, writes = find_blocker(KEYS[1], waiter, mode)
if blocker == '' then return 0 end
local queued = false
if mode == 'r:' and not blocker and not writes then
  local writer, came, writer_until, first = find_writer()
  queued = first
  -- A new reader comes after a waiting writer; a waiting reader comes in its turn.
  if writer and writer ~= waiter and not (ARGV[5] and now - ARGV[6] < came) then
    blocker, blocked_until = 'writers', writer_until
  end
end
if blocker then
  if not ARGV[5] then return {blocked_until - now, blocker, 0} end
  -- Writers go before all readers.
  local rank, ahead = nil, mode == 'w:' and 2^52 or 0
-- include: take_place
  return {blocked_until - now, blocker, 0, rank}
end

-- include: remembers
local refusal = put(KEYS[1], ARGV[1], now + ARGV[3], ARGV[2])
if type(refusal) == 'table' then return refusal end
if ARGV[5] then
-- include: leave_queue
end
-- Waiting readers that this node has not woken yet get the lock along with this one.
if queued then hand_over() end
return 1
