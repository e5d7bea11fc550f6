-- Purpose: keep a node that lost its memory out of new grants: a claim that it forgot may still be believed.
-- Uses guard: for how long it must have remembered everything, ms; 0: does not matter.
if guard ~= '0' then
-- include: memory
  if foreign then return foreign end
  if remembered < tonumber(guard) then
    return redis.error_reply(string.format('FORGETFUL %.0f', remembered))
  end
end
