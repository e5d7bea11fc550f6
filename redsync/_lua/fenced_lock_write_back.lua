-- Purpose: raise this node's fencing token to one that is about to be handed out; never lowers it, so it is idempotent and
-- may come late. Only a node that keeps the claim meanwhile stands for that token: another one may have granted to who
-- comes next already, with a lower one.
-- KEYS[1] lock: hash claim -> hold count   KEYS[2] latest token of this node
-- ARGV[1] claim: "<owner>:<number>"   ARGV[2] token
-- Reply: the token at which this node stands now | error UNCLAIMED: it does not keep our claim; the token is raised too
--        | error ABSURD: no token can be as high, nothing was changed
local stands, told = tonumber(redis.call('get', KEYS[2]) or 0), tonumber(ARGV[2])
-- include: absurd
if absurd then return absurd end
local token = math.max(stands, told)
redis.call('set', KEYS[2], string.format('%.0f', token), 'px', 86400000)
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return redis.error_reply('UNCLAIMED this node does not keep the claim') end
return token
