-- Purpose: compute how long this node has remembered everything, ms: since its birth record was written, if the record
-- names a process to which the asker is connected. Otherwise -1: the record is missing after FLUSHALL, or after an
-- empty server replaced the node, and it names another process if the data was replaced. A "newborn" record counts by
-- this node's clock, and starts again if the clock was set back. An "original" record means: long enough for any guard.
-- The key is the same for all names, so it is not among KEYS. Uses guard: "<ms>,<process>,<process>,". Sets remembered;
-- since, ms, nil if the record does not count; and foreign, an error, if the record is of another type.
-- include: tag
local birth = redis.pcall('get', tag .. 'redsync_birth')
local foreign = type(birth) == 'table' and birth
local kind, since, process = string.match(not foreign and birth or '', '^(%l+) (%d+) (%S+)$')
local remembered = -1
if not kind or not string.find(guard, ',' .. process .. ',', 1, true) then
  since = nil
elseif kind == 'original' then
  remembered = math.huge
elseif kind == 'newborn' then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if now < tonumber(since) then
    since = string.format('%.0f', now)
    redis.call('set', tag .. 'redsync_birth', 'newborn ' .. since .. ' ' .. process)
  end
  remembered = now - since
end
