-- Purpose: refuse an absurd token. A token more than a year ahead of both this node's clock and this node's own token
-- comes from one broken node. A token that a quorum refuses is never handed out, and leaves room for the next.
-- Uses told: the client's token, stands: this node's token. Sets absurd: the error to reply, or nil.
local absurd
if told > stands + 31622400000000 and told > (redis.call('time')[1] + 31622400) * 1000000 then
  absurd = redis.error_reply(string.format('ABSURD the token %.0f is more than a year ahead of the clock', told))
end
