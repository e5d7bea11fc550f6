"""The naive semaphore, as it is often built over several nodes: each node counts, and a majority decides.

It names the permit's own numbers instead of slots, so everything else works as usual: votes are counted, renewals count
nodes that had it, a release removes it. But each node bounds only its own permits, and no bound holds over all nodes.
"""

__all__ = ["NAIVE"]

_COUNT = """
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, permit in ipairs(redis.call('zrangebyscore', KEYS[1], '-inf', now)) do
  redis.call('zrem', KEYS[1], permit)
  redis.call('hdel', KEYS[4], permit)
end
"""

_ACQUIRE = (
    _COUNT
    + """
local out = 0
for _, count in ipairs(redis.call('hvals', KEYS[4])) do out = out + count end
if redis.call('zscore', KEYS[1], ARGV[1]) then out = out - redis.call('hget', KEYS[4], ARGV[1]) end
if out + ARGV[2] > tonumber(ARGV[9]) then
  redis.call('zrem', KEYS[1], ARGV[1])
  redis.call('hdel', KEYS[4], ARGV[1])
  return {100, 'full', math.max(1, ARGV[6]), 0, '', tonumber(ARGV[9])}
end
redis.call('zadd', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('hset', KEYS[4], ARGV[1], ARGV[2])
redis.call('pexpire', KEYS[1], 2 * ARGV[3])
redis.call('pexpire', KEYS[4], 2 * ARGV[3])
redis.call('set', KEYS[6], ARGV[8] .. ' ' .. ARGV[9] .. (ARGV[13] and ' ' .. ARGV[13] or ''))
local client, serial = string.match(ARGV[1], '^(%x+).*:(%d+)$')
local slots = {}
for i = 1, ARGV[2] do slots[i] = string.format('%.0f', tonumber(client, 16) * 1000000 + serial * 100 + i) end
return table.concat(slots, ',')
"""
)

_DROP = """
local had = redis.call('zrem', KEYS[1], ARGV[1])
redis.call('hdel', KEYS[4], ARGV[1])
return had
"""

_RELEASE = """
if ARGV[2] == '0' then
  redis.call('hdel', KEYS[4], ARGV[1])
  return redis.call('zrem', KEYS[1], ARGV[1])
end
if not redis.call('zscore', KEYS[1], ARGV[1]) then return 0 end
redis.call('hset', KEYS[4], ARGV[1], ARGV[2])
return 1
"""

_RENEW = """
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply = {}
for i = 1, math.floor((#ARGV - #KEYS / 6) / 4) do
  local j, permit, lease = 6 * ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i]
  local expiry = redis.call('zscore', KEYS[j - 5], permit)
  reply[i] = expiry and tonumber(expiry) > now and 2 or 1
  local _, commas = string.gsub(ARGV[4 * i - 1], ',', '')
  redis.call('hset', KEYS[j - 4], permit, commas + 1)
  redis.call('zadd', KEYS[j - 5], now + lease, permit)
  redis.call('pexpire', KEYS[j - 5], 2 * lease)
  redis.call('pexpire', KEYS[j - 4], 2 * lease)
end
return reply
"""

NAIVE = {
    "semaphore_acquire": _ACQUIRE,
    "semaphore_release": _RELEASE,
    "semaphore_abandon": _DROP,
    "semaphore_renew": _RENEW,
    "semaphore_settle": "return 1",
}
