-- Purpose: tell which server process this is. INFO costs some 10 us, so granting scripts read the process from the
-- birth record instead. Sets process; "-" if the server does not tell.
local server = redis.pcall('info', 'server')
local process = string.sub(type(server) == 'string' and string.match(server, 'run_id:(%x+)') or '-', 1, 16)
