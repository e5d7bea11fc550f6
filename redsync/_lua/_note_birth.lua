-- Purpose: mark a node that lost its memory as newborn: it remembers only from now on. A node that forgot claims which
-- are still renewed is not a new node, whatever it looks like. The same goes for a node whose record was written under
-- another process. Uses guarded: true if memory is guarded.
if guarded then
-- include: process
-- include: tag
  local record = redis.pcall('get', tag .. 'redsync_birth')
  -- Without the epoch of the process: only clients know it, and they compare it.
  local kind, rest = string.match(type(record) == 'string' and record or '', '^(%l+) %d+([^@]*)')
  if not record or kind and (kind == 'blank' or rest ~= ' ' .. process) then
    local time = redis.call('time')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    -- A node out of memory stays without a record, and so out of new grants.
    redis.pcall('set', tag .. 'redsync_birth', string.format('newborn %.0f ', now) .. process)
  end
end
