-- Purpose: a node that forgot claims which are still renewed is no new node, whatever it looks like: it remembers from
-- now on only. So is one whose record was written under another process. Uses guarded: whether memory is guarded.
if guarded then
-- include: process
  local record = redis.pcall('get', 'redsync_birth')
  local kind, rest = string.match(type(record) == 'string' and record or '', '^(%l+) %d+(.*)$')
  if not record or kind and (kind == 'blank' or rest ~= ' ' .. process) then
    local time = redis.call('time')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    -- Under OOM it stays without a record, and so out of new grants.
    redis.pcall('set', 'redsync_birth', string.format('newborn %.0f ', now) .. process)
  end
end
