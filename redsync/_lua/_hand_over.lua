-- Purpose: hand a free lock over to the head of the queue, in the step in which it becomes free: no other owner can
-- come in between, and the new holder needs no round to get it. An ask id "<number>+<ms>" names a lease, for which the
-- claim lasts. With any other id the claim lasts only as long as the place, as the new holder may have stopped. If it
-- is 0, or this node has not remembered for as long as the head requires, the script only wakes the head. The message
-- names the ask that it answers: "<number or 0> <owner> <lock>". An older script, which knows no leases, repeats the
-- whole id: then the head asks. The new holder keeps its place until it releases the lock, so no waiter overtakes it.
-- If its client no longer listens on this node (wake returned 0), it loses claim and place at once.
-- Uses KEYS[1] lock, KEYS[2] queue, KEYS[3] places, and value_type, as which the lock is claimed: hash, or string for
-- a mutex; none: not known, so the script only wakes the head.
-- include: wake
while true do
-- include: live_head
  if not head then break end
  local needed = tonumber(string.match(guard, '^%d+'))
  if ask_id ~= '0' and needed > 0 then
-- include: memory
    if remembered < needed then ask_id = '0' end
  end
  if ask_id ~= '0' then
    local number, lease = string.match(ask_id, '^(%d+)%+(%d+)$')
    local claim, ms, granted = head .. ':' .. of, lease or until_ms - now, false
    if value_type == 'hash' then
      granted = type(redis.pcall('hset', KEYS[1], claim, '1')) == 'number'
      if granted then redis.call('pexpire', KEYS[1], ms) end
    elseif value_type == 'string' then
      granted = redis.pcall('set', KEYS[1], claim, 'px', ms).ok ~= nil
    end
    -- If this node refuses to write, it only wakes the head, which asks and gets the error.
    ask_id = granted and (number or ask_id) or '0'
  end
  if wake(channel, ask_id, head) > 0 then break end
  if ask_id ~= '0' then redis.call('del', KEYS[1]) end
  redis.call('zrem', KEYS[2], head)
  redis.call('hdel', KEYS[3], head)
end
