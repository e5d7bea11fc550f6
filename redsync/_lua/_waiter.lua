-- Purpose: tell who waits, or holds, from the number of its claim. Numbers only grow, so commands that come late are known.
-- Uses ARGV[1] claim: "<owner>:<number>". Sets waiter and number, nil for what other libraries keep.
local waiter, number = string.match(ARGV[1], '^(.*):(%d+)$')
number = tonumber(number)
