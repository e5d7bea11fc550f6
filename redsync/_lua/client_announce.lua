-- Purpose: keep the record of a client, which shows people the process behind a claim. Idempotent.
-- KEYS[1] the client's record
-- ARGV[1] the record, msgpack   ARGV[2] how long to keep it, ms
-- Reply: 1
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 1
