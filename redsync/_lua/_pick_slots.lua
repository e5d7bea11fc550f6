-- Purpose: find the first free slots from ARGV[10] on, cyclically; the search skips bytes that are full.
-- Uses KEYS[5] taken, permits, wants. Sets found.
local found, bits = {}, redis.call('get', KEYS[5]) or ''
local function pick(slot, last)
  while slot <= last and #found < wants do
    local position = math.floor(slot / 8) + 1
    local byte = string.byte(bits, position) or 0
    if byte == 255 then
      slot = ((string.find(bits, '[^\255]', position) or #bits + 1) - 1) * 8
    else
      if math.floor(byte / 2 ^ (7 - slot % 8)) % 2 == 0 then found[#found + 1] = slot end
      slot = slot + 1
    end
  end
end
pick(tonumber(ARGV[10]), permits - 1)
pick(0, tonumber(ARGV[10]) - 1)
