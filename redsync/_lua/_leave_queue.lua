-- Purpose: give up the place in the queue, as who has what it waited for. Uses KEYS[2] queue, KEYS[3] places, ARGV[1] owner.
redis.call('zrem', KEYS[2], ARGV[1])
redis.call('hdel', KEYS[3], ARGV[1])
