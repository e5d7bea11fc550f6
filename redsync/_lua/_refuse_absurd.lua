-- Purpose: refuse a token that lies more than a year ahead of both this node's clock and its own token: one broken node has
-- told it. What is refused by a quorum is handed to nobody, and leaves room for the next. Uses told, stands: tokens.
if told > stands + 31622400000000 and told > (redis.call('time')[1] + 31622400) * 1000000 then
  return redis.error_reply(string.format('ABSURD the token %.0f is more than a year ahead of the clock', told))
end
