-- Purpose: establish since when this node remembers everything, before any client relies on it. If the birth record was
-- written under another server process, a "newborn" one replaces it, whatever it says: the data may be of any age. The
-- script reads the process in this very step, so no restart can come in between. Idempotent.
-- KEYS[1] birth record: "<kind> <ms> <process>"; kind: original: this node never forgot anything | newborn: it may have
--         forgotten | blank: a client looked when there was no record; clients with a restart guard get no grants yet
--         | joining: another server of the group was the master before; likewise
-- ARGV[1] the record to write if there is none, or a blank one: look: a blank one | newborn
--         | original: replaces a blank one that ARGV[2] lists, else like look | greet: look, at a handshake
-- ARGV[2] only with original: the blank records that the client saw: " <ms>,<process> <ms>,<process> "
-- ARGV[3] only for nodes whose server changes: the processes to which the client is connected, with the epoch of the
--         decision that made each of them the master, and the history of its data:
--         ",<process>@<epoch>.<history>,<process>@<epoch>.<history>,"
-- Reply: {the record now, or an empty text, this node's time, ms, its process: the first 16 characters of its run_id,
--        or -, with its epoch and history}
--        | error WRONGTYPE
-- include: process
local elected, epoch = string.match(ARGV[3] or '', ',(' .. process .. '@(%d+)%.%x+),')
process = elected or process
local record = redis.pcall('get', KEYS[1])
if type(record) == 'table' then return record end
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local kind, since, rest = string.match(record or '', '^(%l+) (%d+)(.*)$')
local gets
if epoch and ARGV[1] ~= 'greet' and rest ~= ' ' .. process then
  -- Only a client that has just greeted the server knows its current name.
  gets = nil
elseif not record then
  -- After a decision another server was the master before: a replica that had nothing yet is not new.
  local new = ARGV[1] == 'newborn' and 'newborn' or 'blank'
  gets = epoch and epoch ~= '0' and 'joining' or new
elseif kind and rest ~= ' ' .. process then
  gets = epoch and 'joining' or 'newborn'
elseif kind == 'joining' and ARGV[1] == 'newborn' then
  gets = 'newborn'
elseif kind == 'blank' and (ARGV[1] == 'newborn'
    or ARGV[1] == 'original' and string.find(ARGV[2], ' ' .. since .. ',' .. process .. ' ', 1, true)) then
  gets = ARGV[1]
end
-- A value that is not one of our records stays. A node may refuse to write: then the record does not name its process.
if gets then redis.pcall('set', KEYS[1], gets .. ' ' .. now .. ' ' .. process) end
return {redis.call('get', KEYS[1]) or '', tonumber(now), process}
