-- Purpose: hand a free lock over to the head of the queue, in the step in which it becomes free: nobody else can come in
-- between, and the heir needs no round to get it. It has the claim for as long as its place lasts, as it may have stopped.
-- One whose mark is 0, or for whom this node does not remember for long enough, is only woken. The message says which of
-- its asks was answered: "<mark or 0> <owner> <lock>". The heir keeps its place until it gives the lock back, so nobody
-- overtakes it. One whose client no longer listens on this node (PUBLISH reached nobody) loses it at once.
-- Uses KEYS[1] lock, KEYS[2] queue, KEYS[3] places, and the function grant.
while true do
-- include: live_head
  if not head then break end
  if mark ~= '0' and guard ~= '0' then
-- include: memory
    if remembered < tonumber(string.match(guard, '^%d+')) then mark = '0' end
  end
  if mark ~= '0' then
    -- A node may refuse to write; then the heir asks, and is told.
    if not grant(head .. ':' .. of, until_ms - now) then mark = '0' end
  end
  if redis.call('publish', channel, mark .. ' ' .. head .. ' ' .. KEYS[1]) > 0 then break end
  if mark ~= '0' then redis.call('del', KEYS[1]) end
  redis.call('zrem', KEYS[2], head)
  redis.call('hdel', KEYS[3], head)
end
