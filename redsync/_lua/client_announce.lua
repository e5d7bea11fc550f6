-- Purpose: keep the record of a client, which shows people the process behind a claim, until the client is closed.
-- Idempotent.
-- KEYS[1] the client's record
-- ARGV[1] the record, msgpack   ARGV[2] how long to keep it, ms; 0: the client was closed
-- Reply: none
if ARGV[2] == '0' then
  redis.call('del', KEYS[1])
else
  redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
end
