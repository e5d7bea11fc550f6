-- Purpose: tell which server process this is. Costs some 10 us, so what grants goes by the birth record, which names it.
-- Sets process; "-" if the server does not tell.
local server = redis.pcall('info', 'server')
local process = string.sub(type(server) == 'string' and string.match(server, 'run_id:(%x+)') or '-', 1, 16)
