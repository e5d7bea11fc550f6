-- Purpose: keep the record of a client, which shows people the process behind a claim, until the client is closed. It
-- also reads this node's clock, for a client whose observers want to know how fast it goes. Idempotent.
-- KEYS[1] the client's record
-- ARGV[1] the record, msgpack   ARGV[2] how long to keep it, ms; 0: the client was closed
-- Reply: {seconds since 1970, microseconds}
if ARGV[2] == '0' then
  redis.call('del', KEYS[1])
else
  redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
end
return redis.call('time')
