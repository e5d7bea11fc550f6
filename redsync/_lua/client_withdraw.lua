-- Purpose: delete the record of a client that was closed. Idempotent.
-- KEYS[1] the client's record
-- ARGV none
-- Reply: 1 it was there | 0 it was not
return redis.call('del', KEYS[1])
