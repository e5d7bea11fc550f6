-- Purpose: a node that forgot claims which are still renewed is no new node, whatever it looks like: it remembers from
-- now on only. Uses guarded: whether memory is guarded.
if guarded and redis.call('exists', 'redsync_birth') == 0 then
  local time = redis.call('time')
  -- Under OOM it stays without a record, and so out of new grants.
  redis.pcall('set', 'redsync_birth', string.format('newborn %.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
end
