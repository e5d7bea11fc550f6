-- Purpose: wake a waiter: its client gets "<ask id> <owner> <key>", with the key as clients know it. A cluster spreads
-- PUBLISH to all its servers, so one voter's message would look like all voters': voters use SPUBLISH, on a channel of
-- their slot. Returns 0 if the client no longer listens on this node. Uses KEYS[1]. Sets tag and wake.
-- include: tag
local function wake(channel, ask_id, waiter)
  local message = ask_id .. ' ' .. waiter .. ' ' .. string.sub(KEYS[1], #tag + 1)
  return redis.call(tag == '' and 'publish' or 'spublish', tag .. channel, message)
end
