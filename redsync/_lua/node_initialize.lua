-- Purpose: settle since when this node remembers everything, before anybody relies on it. A record that was written under
-- another server process is replaced by a "newborn" one, whatever it says: the data may be of any age. The process is
-- read in this very step, so no restart can come in between. Idempotent.
-- KEYS[1] birth record: "<kind> <ms> <process>"; kind: original: this node never forgot anything | newborn: it may have |
--         blank: somebody looked when it had none, nothing is granted yet to clients with a restart guard
-- ARGV[1] what it gets if it has none, or a blank one: look: a blank one | newborn
--         | original: in exchange for a blank one that is listed, else as look
-- ARGV[2] only with original: the blank records that were seen: " <ms>,<process> <ms>,<process> "
-- Reply: {the record that is there now, or nothing, this node's time in ms, its process: the first 16 characters of its run_id, or -}
--        | error WRONGTYPE
-- include: process
local record = redis.pcall('get', KEYS[1])
if type(record) == 'table' then return record end
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local kind, since, rest = string.match(record or '', '^(%l+) (%d+)(.*)$')
local gets
if not record then
  gets = ARGV[1] == 'newborn' and 'newborn' or 'blank'
elseif kind and rest ~= ' ' .. process then
  gets = 'newborn'
elseif kind == 'blank' and (ARGV[1] == 'newborn'
    or ARGV[1] == 'original' and string.find(ARGV[2], ' ' .. since .. ',' .. process .. ' ', 1, true)) then
  gets = ARGV[1]
end
-- What is no record of ours stays as it is. A node may refuse to write: then the record does not name its process.
if gets then redis.pcall('set', KEYS[1], gets .. ' ' .. now .. ' ' .. process) end
return {redis.call('get', KEYS[1]) or '', tonumber(now), process}
