-- Purpose: tell who holds a lock or mutex and who waits for it; changes nothing.
-- KEYS[1] lock: hash owner -> hold count, or mutex: string, its holder's value    KEYS[2] queue: zset owner -> arrival ms
-- KEYS[3] latest fencing token, kept for a day
-- ARGV none
-- Reply: {type of the key, "fenced" for a hash that goes with a token, remaining ms (-2 none, -1 no expiry), {owner, count},
--         {waiting owners, longest first}, the record of the holder's client, msgpack, or nothing}
local kind = redis.call('type', KEYS[1]).ok
local holder = {}
if kind == 'hash' then holder = redis.call('hgetall', KEYS[1]) end
if kind == 'string' then holder = {redis.call('get', KEYS[1]), '1'} end
if kind == 'hash' and redis.call('exists', KEYS[3]) == 1 then kind = 'fenced' end
-- Owners of ours are "<client uuid>:<serial>"; the record's key depends on who holds, so it is not among KEYS.
local client = string.match(holder[1] or '', '^([%x-]+):%d+$')
local record = client and redis.pcall('get', 'redsync:client:' .. client)
return {kind, redis.call('pttl', KEYS[1]), holder, redis.call('zrange', KEYS[2], 0, 99), type(record) == 'string' and record or nil}
