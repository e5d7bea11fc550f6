-- Purpose: wake the head of the queue. It keeps its place until it gives the lock back, so nobody overtakes it. One whose
-- client no longer listens on this node (PUBLISH reached nobody) loses it at once. Uses KEYS[1] lock, KEYS[2] queue,
-- KEYS[3] places.
while true do
-- include: live_head
  if not head or redis.call('publish', channel, head .. ' ' .. KEYS[1]) > 0 then break end
  redis.call('zrem', KEYS[2], head)
  redis.call('hdel', KEYS[3], head)
end
