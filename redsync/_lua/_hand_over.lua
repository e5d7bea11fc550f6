-- Purpose: hand a free lock over to the head of the queue, in the step in which it becomes free: no other owner can
-- come in between, and the new holder needs no round to get it. A mark "<number>+<ms>" names a lease, for which the
-- claim lasts. With any other mark the claim lasts only as long as the place, because the new holder may have stopped.
-- If the mark is 0, or this node has not remembered for as long as the head requires, the script only wakes the head.
-- The message names the ask that it answers: "<number or 0> <owner> <lock>". An older script, which knows no leases,
-- repeats the whole mark: then the head asks. The new holder keeps its place until it releases the lock, so no waiter
-- overtakes it. If its client no longer listens on this node (wake returned 0), it loses claim and place at once.
-- Uses KEYS[1] lock, KEYS[2] queue, KEYS[3] places, and the function grant.
-- include: wake
while true do
-- include: live_head
  if not head then break end
  local needed = tonumber(string.match(guard, '^%d+'))
  if mark ~= '0' and needed > 0 then
-- include: memory
    if remembered < needed then mark = '0' end
  end
  if mark ~= '0' then
    -- If this node refuses to write, it only wakes the head, which asks and gets the error.
    local number, lease = string.match(mark, '^(%d+)%+(%d+)$')
    mark = grant(head .. ':' .. of, lease or until_ms - now) and (number or mark) or '0'
  end
  if wake(channel, mark, head) > 0 then break end
  if mark ~= '0' then redis.call('del', KEYS[1]) end
  redis.call('zrem', KEYS[2], head)
  redis.call('hdel', KEYS[3], head)
end
