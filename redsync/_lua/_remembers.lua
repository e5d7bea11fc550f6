-- Purpose: keep a node that lost its memory out of new grants: a claim that it forgot may still be believed.
-- Uses ARGV[4] for how long it must have remembered everything, ms; 0: does not matter.
if ARGV[4] ~= '0' then
-- include: memory
  if foreign then return foreign end
  if remembered < tonumber(ARGV[4]) then
    return redis.error_reply(string.format('FORGETFUL %.0f', remembered))
  end
end
