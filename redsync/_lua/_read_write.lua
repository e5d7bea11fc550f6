-- Purpose: the claims on one read-write lock: one sorted set, in which each claim has its own expiry by this node's
-- clock. A member is "r:<claim>" for a reader or "w:<claim>" for the writer, where a claim is "<owner>:<number>". Its
-- score is the time at which it expires, ms, with (hold count - 1) / 1024 as the fraction: the count, which only people
-- read, stops at 1,024. The writer's score is negative, so the writer comes first, and readers follow in the order in
-- which they expire: the two ends of the set answer each question, however many readers there are. Sets now, ms.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns whether a claim with that score is not expired.
local function is_live(score)
  return math.abs(score) >= now + 1
end
