-- Purpose: raise this node's fencing token to a token that the client is about to hand out. It never lowers the token,
-- so it is idempotent and may come late. Only a node that still keeps the claim counts for that token: another node may
-- already have granted to the next owner, with a lower token.
-- KEYS[1] lock: hash claim -> hold count   KEYS[2] this node's latest token
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] token
-- Reply: this node's latest token now | error UNCLAIMED: this node does not keep our claim, but raised its token
local token = math.max(redis.call('get', KEYS[2]) or 0, ARGV[2])
redis.call('set', KEYS[2], string.format('%.0f', token), 'px', 86400000)
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return redis.error_reply('UNCLAIMED this node does not keep the claim') end
return token
