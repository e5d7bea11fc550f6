-- Purpose: hand a read-write lock over as far as its holders allow, in the very step in which they allow it: to all
-- readers that have waited longer than any writer, or, if there is no reader, to the writer that has waited longest.
-- The claim of a new holder lasts for the lease in its mark, "<number>+<ms>", or else as long as its place. A message
-- tells the new holder: "<number or 0> <owner> <lock>". If the mark is 0, or this node has not remembered for as long
-- as the waiter requires, the script only wakes the waiter; a writer then keeps its place, so that no new reader comes
-- in before it. At most 64 readers per call: the script only wakes the 64th, whose ask hands the lock over to the next
-- 64; if the 64th is gone, the script does that. A waiter whose client no longer listens on this node (wake returned 0)
-- loses claim and place.
-- Uses KEYS[1] holders, KEYS[2] queue, KEYS[3] places, now, is_live.
-- include: read_write_claims
-- include: wake
local told = false
while not told and not find_blocker(KEYS[1], '', 'r:') do
-- include: read_write_next
  local before = writer and string.format('(%.0f', writer_came) or '+inf'
  local heirs, mode = redis.call('zrangebyscore', KEYS[2], 0, before, 'limit', 0, 64), 'r:'
  if not heirs[1] and writer and not find_blocker(KEYS[1], writer, 'w:') then heirs, mode = {writer}, 'w:' end
  if not heirs[1] then break end

  for i, heir in ipairs(heirs) do
    local place = redis.call('hget', KEYS[3], heir) or ''
    local until_ms, of, mark, guard, channel = string.match(place, '^(%d+) (%d+) (%S+) (%S+) (.*)$')
    local claim = mode .. heir .. ':' .. (of or '')
    local had = redis.call('zscore', KEYS[1], claim)
    local stays, heard = false, false
    -- A renewal may already have made the claim here while its owner still had a place.
    if until_ms and tonumber(until_ms) > now and not (had and is_live(had)) then
      local needed = tonumber(string.match(guard, '^%d+'))
      if mark ~= '0' and needed > 0 then
-- include: memory
        if remembered < needed then mark = '0' end
      end
      local number, lease = string.match(mark, '^(%d+)%+(%d+)$')
      local ends = lease and now + lease or tonumber(until_ms)
      if i == 64 or (mark ~= '0' and type(put(KEYS[1], claim, ends, '1')) == 'table') then mark, number = '0', nil end
      mark = number or mark
      heard = wake(channel, mark, heir) > 0
      if mark ~= '0' and not heard then redis.call('zrem', KEYS[1], claim) end
      stays = heard and mark == '0' and mode == 'w:'
    end
    told = heard or told and i < 64
    if not stays then
      redis.call('zrem', KEYS[2], heir)
      redis.call('hdel', KEYS[3], heir)
    end
  end
end
