-- Purpose: write the birth record of a node that has none: from when on it remembers all claims. Idempotent: a record
-- that is there stays as it is.
-- KEYS[1] birth record: "original <ms>" a node that never forgot anything | "newborn <ms>" one that may have
-- ARGV[1] original | newborn
-- Reply: [the record that is there now, this node's time in ms]
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('setnx', KEYS[1], string.format('%s %.0f', ARGV[1], now))
return {redis.call('get', KEYS[1]), now}
