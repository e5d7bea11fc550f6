-- Purpose: read this node's clock, for a client whose observers want to know how fast it goes. Writes nothing.
-- KEYS[1] the client's record, which says where in a cluster to ask
-- ARGV none
-- Reply: {seconds since 1970, microseconds}
return redis.call('time')
