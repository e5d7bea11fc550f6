-- Purpose: tell for how long this node remembers everything, ms. It does since its birth record was written: a record is
-- missing after FLUSHALL, or when an empty server took its place: -1; a "newborn" one is counted by this node's clock, and
-- anew if that was set back; any other says that it is for long. The key is the same for all names, so it is not among
-- KEYS. Sets remembered; and foreign, an error, if the record is of another type.
local birth = redis.pcall('get', 'redsync_birth')
local foreign = type(birth) == 'table' and birth
if foreign then birth = false end
local remembered = birth and math.huge or -1
local since = string.match(birth or '', '^newborn (%d+)$')
if since then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if now < tonumber(since) then
    redis.call('set', 'redsync_birth', string.format('newborn %.0f', now))
    since = now
  end
  remembered = now - since
end
