-- Purpose: identify this server process. INFO costs about 10 us, so granting scripts read the process from the birth
-- record instead. Sets process; "-" if the server does not report it.
local server = redis.pcall('info', 'server')
local process = string.sub(type(server) == 'string' and string.match(server, 'run_id:(%x+)') or '-', 1, 16)
