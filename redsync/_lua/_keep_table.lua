-- Purpose: make a node find the slots of a permit at once, however many there are. It keeps a hash of up to 512 short
-- fields as a list, which each command searches from the beginning: about 1 us for 500 fields. One long field makes it
-- keep a table from then on. Not for few permits: a table takes more memory. Uses KEYS[4] slots, permits, and lengthened.
if lengthened and permits > 100 then
  local long = string.rep('-', 65)
  redis.call('hset', KEYS[4], long, '')
  redis.call('hdel', KEYS[4], long)
end
