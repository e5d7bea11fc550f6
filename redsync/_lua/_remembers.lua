-- Purpose: keep a node that lost its memory out of new grants: a claim that it forgot may still be believed. It remembers
-- since its birth record was written: a record is missing after FLUSHALL, or when an empty server took its place; a
-- "newborn" one is counted by this node's clock, and anew if that was set back. The key is the same for all names, so it
-- is not among KEYS. Uses ARGV[4] for how long it must have remembered everything, ms; 0: does not matter.
if ARGV[4] ~= '0' then
  local birth = redis.call('get', 'redsync_birth')
  if not birth then return redis.error_reply('FORGETFUL -1') end
  local since = string.match(birth, '^newborn (%d+)$')
  if since then
    local time = redis.call('time')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    if now < tonumber(since) then
      redis.call('set', 'redsync_birth', string.format('newborn %.0f', now))
      since = now
    end
    if now - since < tonumber(ARGV[4]) then
      return redis.error_reply(string.format('FORGETFUL %.0f', now - since))
    end
  end
end
